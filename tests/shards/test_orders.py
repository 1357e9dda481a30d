"""The order of rows: every row once, the same for any number of ranks, and each rank within its own part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orca.shards.orders import Lanes, Order, ScoredRows, Step, TrainingRows, order_of, row_keys


def numbers(step: Step, count: int) -> np.ndarray:
    return np.arange(count)[step.rows]


def check_least(parts: list[np.ndarray], least: set[int], batch_size: int) -> None:
    sizes = [len(part) for part in parts if len(part)]
    assert least == {min(sizes)}
    if sum(sizes) not in (1, batch_size) and batch_size >= 2 * len(parts):
        assert min(sizes) > 1, "some layers cannot train on a single row"


@settings(max_examples=400, deadline=None)
@given(
    count=st.integers(1, 300),
    batch_size=st.integers(1, 50),
    world=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 1000),
    shuffle=st.sampled_from([True, False, "global"]),
    first=st.integers(0, 40),
)
@example(count=17, batch_size=16, world=4, seed=0, epoch=0, shuffle=True, first=1)
@example(count=5, batch_size=16, world=4, seed=0, epoch=0, shuffle=True, first=0)
def test_any_number_of_ranks_sees_the_same_rows_in_the_same_step(
    count: int, batch_size: int, world: int, seed: int, epoch: int, shuffle: bool | str, first: int
):
    world = min(world, batch_size)
    order = order_of(shuffle, count, batch_size)
    alone = [numbers(step, count) for step in order.epoch(seed, epoch, 0, 1)]
    ranks = [list(order.epoch(seed, epoch, rank, world)) for rank in range(world)]
    assert len(alone) == order.steps
    for index, expected in enumerate(alone):
        steps = [steps[index] for steps in ranks]
        parts = [numbers(step, count) for step in steps]
        np.testing.assert_array_equal(np.concatenate(parts), expected)
        assert [step.count for step in steps] == [len(part) for part in parts]
        assert {step.total for step in steps} == {len(expected)}
        check_least(parts, {step.least for step in steps}, batch_size)
        for rank, part in enumerate(parts):
            start, stop = order.needs(rank, world)
            assert 0 <= start < stop <= count
            assert ((part >= start) & (part < stop)).all()
            low, high = order.filler(rank, world)
            assert start <= low < high <= stop
    assert sorted(np.concatenate(alone).tolist()) == list(range(count))
    check_resume(order, seed, epoch, ranks, min(first, order.steps))


def check_resume(order: Order, seed: int, epoch: int, ranks: list[list[Step]], first: int) -> None:
    for rank, steps in enumerate(ranks):
        rest = list(order.epoch(seed, epoch, rank, len(ranks), first))
        assert len(rest) == len(steps) - first
        for one, two in zip(rest, steps[first:], strict=True):
            np.testing.assert_array_equal(numbers(one, order.count), numbers(two, order.count))
            assert (one.count, one.total, one.least) == (two.count, two.total, two.least)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_needs_little_more_than_its_even_part(world: int):
    order = Lanes(100_001, 256)
    for rank in range(world):
        start, stop = order.needs(rank, world)
        assert stop - start <= 100_001 / world * 1.02 + 2


def test_every_step_has_one_row_of_each_lane_and_epochs_differ():
    order = Lanes(1000, 10)
    first, second = ([numbers(step, 1000) for step in order.epoch(3, epoch, 0, 1)] for epoch in (0, 1))
    for rows in first:
        np.testing.assert_array_equal(rows // 100, np.arange(10))
    assert any((one != two).any() for one, two in zip(first, second, strict=True))
    # Every place of a lane is about equally likely in the first step.
    places = np.concatenate([numbers(next(order.epoch(seed, 0, 0, 1)), 1000) % 100 for seed in range(300)])
    assert np.bincount(places, minlength=100).min() > 5


def test_the_random_number_of_a_row_does_not_depend_on_where_reading_starts():
    whole = row_keys(5, 2, 0, 40)
    for start in range(9):
        np.testing.assert_array_equal(row_keys(5, 2, start, 20), whole[start : start + 20])


def test_ranks_that_serve_need_no_rows():
    assert TrainingRows(2, 4)(100, 2) == (0, 0)
    assert ScoredRows(2)(100, 2) == (0, 0)
    assert [ScoredRows(2, limit=10)(100, rank) for rank in range(2)] == [(0, 5), (5, 10)]
