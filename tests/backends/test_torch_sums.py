"""Reduction of gradients over torch ranks: in rank order, at any size, and with sparse gradients."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.backends.torch import sums
from orca.backends.torch.buckets import Buckets
from orca.context import Context
from orca.errors import WorkerError


def part(rank: int, size: int) -> torch.Tensor:
    """Return numbers of very different magnitude, so that another summation order shows in the last bit."""
    rng = np.random.default_rng([rank, size])
    return torch.from_numpy((rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype("f4"))


@contextmanager
def process_group(rank_context):
    import torch.distributed as dist

    place = rank_context.place
    port = 0
    if place.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    port = rank_context.allgather(port)[0]
    if place.rank:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world)
    try:
        yield place
    finally:
        dist.destroy_process_group()


def summed(rank_context, sizes, wire):
    with process_group(rank_context) as place:
        results = []
        for size in sizes:
            flat = part(place.rank, size)
            sums.sum_over_ranks(flat, wire)
            gathered = torch.empty(place.world * size)
            sums.all_gather(gathered, part(place.rank, size))
            results.append((flat.numpy(), gathered.numpy()))
        return results


SIZES = [1, 7, 1000, 200_001]
"""The last size is too large for the exchange in one round."""


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_computed_in_rank_order_at_any_size(local: Context, world: int):
    results = local.gang(world).call(summed, SIZES, None)
    for size, *by_rank in zip(SIZES, *results, strict=True):
        parts = [part(rank, size).numpy() for rank in range(world)]
        expected = parts[0].copy()
        for other in parts[1:]:
            expected += other
        for total, gathered in by_rank:
            np.testing.assert_array_equal(total, expected)
            np.testing.assert_array_equal(gathered, np.concatenate(parts))


@pytest.mark.parametrize("world", [2, 3])
def test_bfloat16_messages_give_all_ranks_the_same_sum(local: Context, world: int):
    results = local.gang(world).call(summed, SIZES, torch.bfloat16)
    for size, *by_rank in zip(SIZES, *results, strict=True):
        parts = torch.stack([part(rank, size) for rank in range(world)])
        for total, _ in by_rank:
            np.testing.assert_array_equal(total, by_rank[0][0])
            np.testing.assert_array_less(
                np.abs(total - parts.sum(dim=0).numpy()), 0.02 * parts.abs().sum(dim=0).numpy() + 1e-6
            )


def parameters() -> list[nn.Parameter]:
    """Return parameters of two types and of several layouts; the last one makes a message of its own."""
    shapes = {(3, 5): torch.float32, (4, 3, 2, 2): torch.float32, (): torch.float64, (7,): torch.float64}
    values = [torch.zeros(shape, dtype=dtype) for shape, dtype in {**shapes, (1500, 1500): torch.float32}.items()]
    values[1] = values[1].contiguous(memory_format=torch.channels_last)
    values.append(torch.zeros(5, 4).t())
    return [nn.Parameter(value) for value in values]


def gradient(rank: int, number: int, value: nn.Parameter) -> torch.Tensor | None:
    """Return a rank's gradient: no rank has one for parameter 0, and only rank 1 for parameter 3."""
    if number == 0 or (number == 3 and rank != 1):
        return None
    return part(10 * number + rank, value.numel()).to(value.dtype).view(value.shape)


def averaged(rank_context, wire):
    with process_group(rank_context) as place:
        values = parameters()
        buckets = Buckets(values, place.world, wire)
        buckets.watch()
        for _ in range(2):  # the second step reuses the buffers of the first
            for value in values:
                value.grad = None
            gradients = [gradient(place.rank, number, value) for number, value in enumerate(values)]
            used = [(value, grad) for value, grad in zip(values, gradients, strict=True) if grad is not None]
            with buckets:
                sum((value * grad).sum().double() for value, grad in used).backward()
            buckets.finish()
        strides = [value.grad is None or value.grad.stride() == value.stride() for value in values]
        return [None if value.grad is None else value.grad.numpy().copy() for value in values], all(strides)


@pytest.mark.parametrize(("world", "wire"), [(2, None), (3, None), (3, torch.bfloat16)])
def test_buckets_average_gradients_of_any_type_and_layout(local: Context, world: int, wire):
    results = local.gang(world).call(averaged, wire)
    for number, value in enumerate(parameters()):
        parts = [gradient(rank, number, value) for rank in range(world)]
        present = [grad.double() for grad in parts if grad is not None]
        for own, same_strides in results:
            assert same_strides
            if not present:
                assert own[number] is None
                continue
            np.testing.assert_array_equal(own[number], results[0][0][number])
            total, size = sum(present).numpy(), sum(grad.abs() for grad in present).numpy()
            tolerance = (0.02 if wire else 1e-6) * size + 1e-6
            assert own[number].dtype == value.detach().numpy().dtype
            assert (np.abs(own[number] * world - total) <= tolerance).all()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(x).mean(dim=1))


def words(backend: str, workers: int) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: Words(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), 0.1),
        loss=nn.CrossEntropyLoss(),
        backend=backend,
        workers=workers,
        seed=3,
    )


@pytest.mark.parametrize("backend", ["torch_distributed", "parameter_server"])
def test_sparse_gradients_are_rejected_with_an_alternative(local: Context, backend: str):
    x = np.arange(64).reshape(16, 4) % 50
    message = r'table of the model has sparse=True.*does not support sparse gradients.*backend="horovod"'
    with pytest.raises(WorkerError, match=message):
        words(backend, 2).fit(x, x[:, 0] % 2, batch_size=8)


@pytest.mark.horovod
def test_horovod_reduces_sparse_gradients(local: Context):
    x = np.arange(256).reshape(64, 4) % 50
    y = x[:, 0] % 2
    losses = [words("horovod", workers).fit(x, y, epochs=3, batch_size=16)["loss"] for workers in (1, 2)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


class Branches(nn.Module):
    """Uses a layer only for rows whose first number is positive: ranks use different layers in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.positive, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.always(x)
        chosen = x[:, 0] > 0
        if chosen.any():
            out = out + torch.where(chosen[:, None], self.positive(x), 0.0)
        return out


def branches(backend: str, workers: int) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: Branches(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        backend=backend,
        workers=workers,
        seed=3,
    )


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.horovod
def test_horovod_ranks_may_use_different_layers_in_a_step(local: Context, accumulate: int):
    x = np.random.default_rng(0).standard_normal((64, 3)).astype("f4")
    # In every batch of eight, the first four rows (those of rank 0) do not use the layer.
    x[:, 0] = np.where(np.arange(64) % 8 < 4, -1, 1) * np.abs(x[:, 0])
    y = (x[:, 1] > 0).astype("i8")
    states = []
    for workers in (1, 2):
        est = branches("horovod", workers)
        est.fit(x, y, epochs=2, batch_size=8, shuffle=False, accumulate=accumulate)
        states.append(est.get_state_dict())
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)
