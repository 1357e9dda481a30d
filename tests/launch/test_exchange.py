"""The exchange of shards between hosts: each host gets the rows that its ranks need, and no others."""

from __future__ import annotations

import os

import numpy as np
import pytest

from orca.context import Context
from orca.launch import exchange
from orca.shards.engines.spark_frames import PackedFiles
from orca.shards.feed import Rows
from orca.shards.orders import TrainingRows
from orca.shards.packing import pack


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
    absent = sum(handle.rows for handle in shards if isinstance(handle, exchange._Absent))
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
