"""Horovod in processes that were in other gangs before."""

from __future__ import annotations

import os

import pytest

from orca.context import Context

pytestmark = pytest.mark.horovod


def rejoin(rank_context):
    import horovod.torch as hvd
    import torch

    from orca.backends.torch import horovod_sync

    if rank_context.place.rank == 0:
        # As a process that was a member of a larger gang, with each tensor a message of its own.
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


def test_a_process_that_was_in_a_larger_gang_agrees_with_a_new_one(local: Context):
    results = local.gang(2).call(rejoin)
    assert results == [[[2.0 * part for part in range(9)]] * 5] * 2
