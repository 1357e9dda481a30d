"""The exchange of shards between hosts: each host gets the rows that its ranks need, and no others."""

from __future__ import annotations

import os

import numpy as np
import pytest

from orca.context import Context
from orca.launch import exchange
from orca.launch.base import Absent
from orca.launch.ray import _cut as cut_for_node
from orca.shards.engines.spark_frames import PackedFiles, _by_target
from orca.shards.feed import Rows
from orca.shards.orders import TrainingRows
from orca.shards.packing import pack, unpack


def shard(start: int, stop: int) -> dict[str, np.ndarray]:
    rows = np.arange(start, stop)
    return {"x": np.stack([rows, rows * 2], axis=1).astype("f4"), "y": rows}


def exchange_rows(context, hosts: list[int], sizes: list[int], owners: list[int], needs) -> dict[str, object]:
    """On a rank: pretend to be on a host of its own, and exchange shards of which each rank has some."""
    rank = context.place.rank
    os.environ["ORCA_HOST_ID"] = f"host-{hosts[rank]}"
    starts = np.cumsum([0, *sizes])
    records = [
        ("train", index, memoryview(pack(shard(starts[index], starts[index + 1]))))
        for index, owner in enumerate(owners)
        if owner == rank
    ]
    fetched: list[tuple[int, int]] = []
    write_pieces = exchange.write_pieces

    def counting(path, parts):
        size = write_pieces(path, parts)
        fetched.append((size, 0))
        return size

    exchange.write_pieces = counting
    try:
        shards = exchange.spool(context, records, "test", {"train": PackedFiles()}, {"train": needs})["train"]
    finally:
        exchange.write_pieces = write_pieces
        del os.environ["ORCA_HOST_ID"]
    count = sum(handle.rows for handle in shards)
    start, stop = needs(count, rank)
    rows = Rows(shards, start, stop)
    mine = rows.slice(start, stop)
    np.testing.assert_array_equal(mine["x"], shard(start, stop)["x"])
    some = np.arange(start, stop)[::-3]
    np.testing.assert_array_equal(rows.take(some)["y"], some)
    absent = sum(handle.rows for handle in shards if isinstance(handle, Absent))
    return {"count": count, "need": stop - start, "absent": absent, "files": len(fetched) - len(records)}


@pytest.mark.parametrize(
    ("hosts", "sizes", "owners"),
    [
        ([0, 1], [50, 50], [0, 1]),
        ([0, 1], [50, 50], [1, 0]),
        ([0, 1], [7, 0, 60, 1, 30, 2], [0, 1, 1, 0, 1, 0]),
        ([0, 1, 1], [90, 10], [0, 0]),
        ([0, 0], [50, 50], [0, 1]),
        ([0, 1, 2], [1, 1, 1, 97], [2, 1, 0, 2]),
    ],
)
def test_each_host_gets_the_rows_of_its_ranks(local: Context, hosts, sizes, owners):
    world, total = len(hosts), sum(sizes)
    gang = local.gang(world)
    needs = TrainingRows(world, 10)
    results = gang.call(exchange_rows, hosts, sizes, owners, needs)
    assert {result["count"] for result in results} == {total}
    for rank, result in enumerate(results):
        together = [needs(total, other) for other in range(world) if hosts[other] == hosts[rank]]
        needed = {row for start, stop in together for row in range(start, stop)}
        # Only shards that came to this host first may bring further rows.
        brought = sum(size for size, owner in zip(sizes, owners, strict=True) if hosts[owner] == hosts[rank])
        assert total - result["absent"] <= len(needed) + brought
        assert result["need"] <= len(needed)


def test_a_host_that_has_its_rows_fetches_nothing(local: Context):
    results = local.gang(2).call(exchange_rows, [0, 1], [50, 50], [0, 1], TrainingRows(2, 10))
    assert [result["files"] for result in results] == [0, 0]
    assert [result["absent"] for result in results] == [50, 50]


class Stored:
    """A shard as the Ray launcher sees it."""

    def __init__(self, rows):
        self.rows = rows

    def part(self, start, stop, node):
        return Stored(stop - start)


@pytest.mark.parametrize("sizes", [[10], [3, 0, 4, 3], [5, 5], [1] * 10, [0, 10]])
@pytest.mark.parametrize("ranks", [[0], [1], [2], [0, 2], [0, 1, 2], [3]])
def test_a_ray_node_gets_the_rows_of_its_ranks_in_their_places(sizes, ranks):
    needs = TrainingRows(3, 6)
    handles = cut_for_node([Stored(rows) for rows in sizes], needs, ranks, "node")
    present = [not isinstance(handle, Absent) for handle in handles for _ in range(handle.rows)]
    needed = {row for rank in ranks for row in range(*needs(10, rank))}
    assert [row for row, here in enumerate(present) if here] == sorted(needed)
    assert len(present) == 10


@pytest.mark.parametrize(("count", "readers"), [(1, 2), (3, 2), (2, 2), (4, 3), (2, 5), (7, 3)])
def test_spark_splits_a_shard_for_the_ranks_that_need_its_rows(count, readers):
    rows, got = 30, []
    for index in range(count):
        record = pack({"x": np.arange(index * rows, (index + 1) * rows)})
        got += [(target, unpack(piece)["x"]) for target, piece in _by_target(record, index, count, readers)]
    assert np.concatenate([piece for _, piece in got]).tolist() == list(range(rows * count))
    for target, piece in got:
        low, high = rows * count * target / readers, rows * count * (target + 1) / readers
        assert low - 1 < piece[0]
        assert piece[-1] < high
