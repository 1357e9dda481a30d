"""Horovod on hosts with different numbers of ranks, and in processes that were in other gangs before."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from orca.backends.horovod_group import cross_rank_and_size
from orca.context import Context

pytestmark = pytest.mark.horovod


def rejoin(rank_context):
    import horovod.torch as hvd
    import torch

    from orca.backends.torch import horovod_sync

    if rank_context.place.rank == 0:
        # Like a process that was in a larger gang, where each tensor is its own message.
        os.environ.update(HOROVOD_FUSION_THRESHOLD="0", HOROVOD_RANK="0", HOROVOD_SIZE="1")
        hvd.init()
        hvd.allreduce(torch.ones(3), name="alone")
        hvd.shutdown()
    horovod_sync.join(rank_context)
    sums = []
    for _ in range(5):
        handles = [hvd.allreduce_async(torch.full((8,), float(part)), op=hvd.Sum, name=f"p{part}") for part in range(9)]
        sums.append([float(hvd.synchronize(handle)[0]) for handle in handles])
    return sums


def test_a_process_from_a_larger_gang_reduces_with_a_new_process(local: Context):
    results = local.gang(2).call(rejoin)
    assert results == [[[2.0 * part for part in range(9)]] * 5] * 2


LAYOUTS = {"2+1": [2, 1], "1+2": [1, 2], "3+1+2": [3, 1, 2], "2+2": [2, 2]}


@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)
def test_cross_ranks_match_horovods_own(sizes):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    everyone = [(f"host{host}", local) for host, size in enumerate(sizes) for local in range(size)]
    slots = get_host_assignments(parse_hosts(",".join(f"host{n}:{size}" for n, size in enumerate(sizes))), sum(sizes))
    assert [cross_rank_and_size(everyone, slot.rank) for slot in slots] == [
        (slot.cross_rank, slot.cross_size) for slot in slots
    ]


def test_ranks_of_a_host_need_not_be_consecutive():
    everyone = [("a", 0), ("b", 0), ("a", 1)]
    assert [cross_rank_and_size(everyone, rank) for rank in range(3)] == [(0, 2), (1, 2), (0, 1)]


def sum_over_hosts(rank_context, sizes):
    import horovod.torch as hvd
    import torch

    from orca.backends.torch import horovod_sync

    everyone = [(host, local) for host, size in enumerate(sizes) for local in range(size)]
    host, local = everyone[rank_context.place.rank]
    # Loopback addresses, each of which is a host to Horovod. By default it waits a minute for missing ranks.
    os.environ.update(HOROVOD_GLOO_IFACE="lo", HOROVOD_GLOO_TIMEOUT_SECONDS="10")
    address = f"127.0.0.{host + 1}"
    rank_context.place = replace(rank_context.place, address=address, local_rank=local, local_world=sizes[host])
    horovod_sync.join(rank_context)
    return float(hvd.allreduce(torch.ones(()), op=hvd.Sum, name="ones"))


def test_hosts_may_have_different_numbers_of_ranks(local: Context):
    gang = local.gang(3)
    assert gang.call(sum_over_hosts, [2, 1]) == [3.0] * 3
    gang.stop()
