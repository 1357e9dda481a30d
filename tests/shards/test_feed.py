"""The feed: every row exactly once, in a documented order that depends neither on shards nor on ranks."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orca.shards.feed import Feed, InMemory, Rows, cut
from orca.shards.orders import order_of, share

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)


def rows_of(sizes):
    borders = np.cumsum([0, *sizes])
    values = np.arange(borders[-1])
    return Rows(
        [InMemory({"x": values[a:b].reshape(-1, 1) * 10, "y": values[a:b]}) for a, b in itertools.pairwise(borders)]
    )


def epoch(sizes, world, batch_size, seed, shuffle, number=0):
    """Return the steps of an epoch, each with the batches of all ranks."""
    feeds = [
        Feed(rows_of(sizes), rank=rank, world=world, batch_size=batch_size, seed=seed, shuffle=shuffle)
        for rank in range(world)
    ]
    steps = list(zip(*(feed.epoch(number) for feed in feeds), strict=True))
    assert all(feed.steps == len(steps) for feed in feeds)
    return steps


@settings(max_examples=150, deadline=None)
@given(SIZES, st.integers(1, 4), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_every_row_is_seen_once_and_ranks_do_not_change_the_order(sizes, world, batch_size, seed, shuffle):
    steps = epoch(sizes, world, batch_size, seed, shuffle)
    batches = []
    for shares in steps:
        real = [batch for batch in shares if not batch.filler]
        assert not shares[0].filler
        assert len({batch.total for batch in shares}) == 1
        assert sum(batch.rows for batch in shares) == shares[0].total
        if shares[0].total == batch_size:
            assert max(batch.rows for batch in shares) - min(batch.rows for batch in shares) <= 1
        elif shares[0].total > 1 and batch_size >= 2 * world:
            assert all(batch.rows != 1 for batch in shares)
        for batch in shares:
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["y"] * 10)
            assert len(batch.data["y"]) >= 1
        batches.append(np.concatenate([batch.data["y"] for batch in real]))
    order = np.concatenate(batches)
    total = sum(sizes)
    alone = order_of(shuffle, total, batch_size).epoch(seed, 0, 0, 1)
    expected = np.concatenate([np.arange(total)[step.rows] for step in alone])
    np.testing.assert_array_equal(order, expected)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(1, 5), st.integers(0, 5))
def test_resuming_at_a_step_gives_the_rest_of_the_epoch(sizes, world, batch_size, first):
    feed = Feed(rows_of(sizes), rank=0, world=world, batch_size=batch_size, seed=1)
    full = [batch.data["y"].tolist() for batch in feed.epoch(2)]
    assert [batch.data["y"].tolist() for batch in feed.epoch(2, first)] == full[first:]


def test_epochs_differ_and_seeds_differ():
    orders = {
        tuple(batch.data["y"].tolist()[0] for (batch,) in epoch([20], 1, 1, seed, True, number))
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(orders) == 4


def test_contiguous_batches_are_views():
    source = np.arange(100.0)
    feed = Feed(Rows([InMemory({"x": source})]), rank=0, world=1, batch_size=10, shuffle=False)
    assert all(np.shares_memory(batch.data["x"], source) for batch in feed.epoch(0))


@given(st.integers(0, 50), st.integers(1, 7))
def test_shares_are_even_and_complete(rows, world):
    shares = [share(rows, rank, world) for rank in range(world)]
    assert shares[0][0] == 0
    assert shares[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(shares))
    lengths = [stop - start for start, stop in shares]
    assert max(lengths) - min(lengths) <= 1


@given(SIZES, st.data())
def test_cut_finds_the_rows_across_shard_borders(sizes, data):
    total = sum(sizes)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    offsets = np.cumsum([0, *sizes])
    rows = [
        row
        for piece in cut(sizes, start, stop)
        for row in range(offsets[piece.shard] + piece.start, offsets[piece.shard] + piece.stop)
    ]
    assert rows == list(range(start, stop))
