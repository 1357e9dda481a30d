"""Sums over the connections between ranks: exact, the same on all ranks, and an error where ranks differ or die."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from orca import WorkerError
from orca.context import Context
from orca.launch import mesh
from orca.launch.mesh import Mesh

LIMIT = 60.0
SIZES = [0, 1, 7, 1000, 300_001]


@contextmanager
def meshes(world: int) -> Iterator[list[Mesh]]:
    """Meshes of several ranks in one process."""
    peers: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    for low in range(world):
        for high in range(low + 1, world):
            peers[low][high], peers[high][low] = socket.socketpair()
    joined = [Mesh(rank, peers[rank]) for rank in range(world)]
    try:
        yield joined
    finally:
        for one in joined:
            one.close()


def on_each(joined: list[Mesh], work: Callable[[Mesh], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(joined)) as pool:
        return [future.result(LIMIT) for future in [pool.submit(work, one) for one in joined]]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_sums_follow_the_order_of_the_ranks(world, dtype):
    rng = np.random.default_rng(0)
    with meshes(world) as joined:
        for size in SIZES:
            parts = (rng.normal(size=(world, size)) * 10.0 ** rng.integers(0, 4, (world, size))).astype(dtype)
            for part in parts:
                part.flags.writeable = False  # like the memory of a TensorFlow tensor
            expected = parts[0].copy()
            for part in parts[1:]:
                expected += part
            for total in on_each(joined, lambda one, parts=parts: one.sum(parts[one.rank], "gradients")):
                assert total.dtype == dtype
                np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gathers_in_rank_order(world):
    with meshes(world) as joined:
        for size in SIZES:
            for everything in on_each(joined, lambda one, n=size: one.gather(np.full(n, one.rank, "f4"), "slots")):
                np.testing.assert_array_equal(everything, np.repeat(np.arange(world, dtype="f4"), size))


@pytest.mark.parametrize("second", [("gradients", 4), ("metrics", 3)])
def test_ranks_at_different_reductions_get_an_error(second):
    calls = [("gradients", 3), second]

    def work(one: Mesh) -> Any:
        site, size = calls[one.rank]
        with pytest.raises(RuntimeError, match="is at another reduction"):
            one.sum(np.ones(size), site)

    with meshes(2) as joined:
        on_each(joined, work)


@pytest.mark.parametrize("size", [1, 4_000_000])
def test_a_closed_connection_is_an_error(size):
    with meshes(2) as joined:
        joined[1].close()
        with pytest.raises(ConnectionError, match="connection closed by rank 1"):
            joined[0].sum(np.ones(size), "gradients")


def listening() -> set[tuple[str, int]]:
    own = psutil.Process().net_connections("tcp")
    return {tuple(entry.laddr) for entry in own if entry.status == psutil.CONN_LISTEN}


def sum_ranks(rank_context):
    before = listening()  # a worker of Spark may have served another gang, and one of Ray listens for Ray
    joined = mesh.join(rank_context)
    assert mesh.join(rank_context) is joined
    total = joined.sum(np.full(3, 10.0**rank_context.place.rank), "total")
    return total.tolist(), listening() - before


def test_ranks_join_and_none_listens_afterwards(context: Context):
    results = context.gang(3).call(sum_ranks)
    assert [total for total, _ in results] == [[111.0] * 3] * 3
    assert [left for _, left in results] == [set()] * 3


def die_while_others_wait(rank_context):
    joined = mesh.join(rank_context)
    if rank_context.place.rank == 1:
        os._exit(3)
    joined.sum(np.ones(3), "total")


def test_a_rank_that_dies_is_blamed_not_those_that_notice(local: Context):
    with pytest.raises(WorkerError, match="rank 1 .*died: exit code 3"):
        local.gang(3).call(die_while_others_wait)
