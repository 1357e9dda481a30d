"""random_split: every row is in exactly one part, chosen by the seed alone, on every engine."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orca import XShards
from orca.context import Context
from orca.errors import ArgumentError

ROWS = 200
KINDS = {
    "frame": lambda: XShards.from_pandas(pd.DataFrame({"row": np.arange(ROWS), "half": np.arange(ROWS) / 2}), 3),
    "table": lambda: XShards.from_arrow(pa.table({"row": np.arange(ROWS)}), 3),
    "dict": lambda: XShards.partition({"row": np.arange(ROWS), "image": np.zeros((ROWS, 2, 2))}, 3),
    "arrays": lambda: XShards.partition((np.arange(ROWS), np.arange(ROWS) * 2.0), 3),
    "list": lambda: XShards.partition({"row": np.arange(ROWS)}, 3).transform_shard(lambda part: part["row"].tolist()),
}


def numbers(shard):
    if isinstance(shard, tuple):
        return list(shard[0])
    return list(shard) if isinstance(shard, list) else np.asarray(shard["row"]).tolist()


def rows_of(shards):
    return [number for shard in shards.collect() for number in numbers(shard)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_lost_or_repeated(context: Context, kind):
    shards = KINDS[kind]()
    parts = shards.random_split([3, 1, 1], seed=4)
    rows = [rows_of(part) for part in parts]
    assert sorted(itertools.chain(*rows)) == list(range(ROWS))
    assert all(one == sorted(one) for one in rows)  # in their old order
    assert [part.num_partitions() for part in parts] == [3, 3, 3]
    for one, share in zip(rows, (0.6, 0.2, 0.2), strict=True):
        assert abs(len(one) - share * ROWS) <= 3  # one row for each shard
    assert parts[0].engine.name == context.runtime


def test_the_seed_alone_decides(context: Context):
    shards = KINDS["dict"]()
    first, second, other = ([rows_of(part) for part in shards.random_split([0.8, 0.2], seed=s)] for s in (7, 7, 8))
    assert first == second
    assert first != other
    here = shards.to_engine("local").random_split([0.8, 0.2], seed=7)
    assert first == [rows_of(part) for part in here]  # the same on every engine
    unseeded = [rows_of(part) for part in shards.random_split([0.8, 0.2])]
    assert sorted(itertools.chain(*unseeded)) == list(range(ROWS))


def test_rows_of_frames_keep_their_values_and_a_named_index(context: Context):
    data = pd.DataFrame({"value": np.arange(20.0)}, index=pd.Index([f"row {n}" for n in range(20)], name="key"))
    parts = XShards.from_pandas(data, 2).random_split([0.5, 0.5], seed=0)
    pd.testing.assert_frame_equal(pd.concat([part.to_pandas() for part in parts]).loc[data.index], data)
    plain = XShards.from_pandas(data.reset_index(drop=True), 2).random_split([0.5, 0.5], seed=0)[0].to_pandas()
    assert plain.index.tolist() == list(range(len(plain)))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=4).filter(lambda weights: sum(weights) > 1e-3),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_sizes_and_weights(local: Context, sizes, weights, seed):
    total = sum(sizes)
    shards = XShards.from_shards(np.split(np.arange(total), np.cumsum(sizes)[:-1]))
    parts = [part.collect() for part in shards.random_split(weights, seed)]
    assert sorted(int(row) for part in parts for shard in part for row in shard) == list(range(total))
    for part, weight in zip(parts, weights, strict=True):
        assert weight or not sum(map(len, part))


def test_many_shards_of_one_row_are_split_in_proportion(local: Context):
    shards = XShards.from_shards([np.array([row]) for row in range(400)])
    assert 40 < len(shards.random_split([0.8, 0.2], seed=1)[1]) < 120


def test_a_step_before_the_split_runs_once_where_results_are_kept(local: Context, tmp_path):
    mark = tmp_path / "ran"

    def touch(shard):
        os.write(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"x")
        return shard

    train, validation = XShards.partition(np.arange(40), 2).transform_shard(touch).random_split([0.5, 0.5], seed=0)
    assert len(train) + len(validation) == 40
    assert mark.read_text() == "xx"


@pytest.mark.parametrize(
    "weights", [[], 0.8, "0.8", [0.5, -0.5], [0, 0], [float("nan"), 1], [float("inf"), 1], ["a"], [True, 1], None]
)
def test_wrong_weights_are_refused(local: Context, weights):
    with pytest.raises(ArgumentError, match=r"weights=.*expected a list of numbers such as \[0.8, 0.2\]"):
        XShards.partition(np.arange(4)).random_split(weights)


@pytest.mark.parametrize("seed", [-1, "x", 1.5, True])
def test_wrong_seeds_are_refused(local: Context, seed):
    with pytest.raises(ArgumentError, match="seed="):
        XShards.partition(np.arange(4)).random_split([0.5, 0.5], seed=seed)
