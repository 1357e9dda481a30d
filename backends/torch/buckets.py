"""Gradients in flat buffers, averaged over the ranks of a torch process group while the backward pass still runs.

The buffers are laid out once, from the parameters alone: in a resumed run each number has the position that it had
before, and so is summed in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from orca.backends.torch.sums import SMALL, Sum, start_sum

_CAPACITY = 8 << 20
"""Size in bytes above which a bucket takes no further parameter."""
_ALIGNED = 64
"""Bytes to whose multiples the gradients of a bucket are aligned, for vector instructions."""


class Buckets:
    """The gradients of some parameters, with one message per bucket.

    `average` sends gradients after the backward pass. To send them while it runs, call `watch` once, use the buckets as
    a context manager around the last backward pass of each step, and call `finish`: gradients are copied into their
    bucket as they arrive, and a bucket is sent when it is full and all before it have been sent. Afterwards the
    gradients of the parameters are views of the buckets.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], world: int, wire: torch.dtype | None = None, group: Any = None
    ) -> None:
        self._buckets = [_Bucket(members, world, wire, group) for members in _partition(parameters)]
        self._parameters = list(parameters)
        self._sent = 0
        self._listening = False
        self._hooks: list[Any] = []

    def hold(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether these are the parameters of the buckets."""
        return [id(value) for value in parameters] == [id(value) for value in self._parameters]

    def watch(self) -> None:
        """Have gradients taken as they arrive."""
        for bucket in self._buckets:
            for number, parameter in enumerate(bucket.parameters):
                arrive = functools.partial(self._arrive, bucket, number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(arrive))

    def average(self) -> None:
        """Average all gradients that there are now."""
        with self:
            pass
        self.finish()

    def __enter__(self) -> Buckets:
        for bucket in self._buckets:
            bucket.reset()
        self._sent, self._listening = 0, True
        return self

    def __exit__(self, *error: object) -> None:
        self._listening = False

    def _arrive(self, bucket: _Bucket, number: int, parameter: nn.Parameter) -> None:
        if not self._listening:
            return
        bucket.take(number)
        if not bucket.missing and bucket is self._buckets[self._sent]:
            self._send_full()

    def _send_full(self) -> None:
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._buckets[self._sent].send()
            self._sent += 1

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """Send what has not been sent, and wait until all gradients are averages over the ranks.

        A parameter without a gradient on this rank gets the average of the others, and none if no rank has one.
        """
        for bucket in self._buckets[self._sent :]:
            bucket.fill()
        self._send_full()
        for bucket in self._buckets:
            bucket.receive()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()


class _Bucket:
    """Parameters whose gradients are sent together, and after them a number for each that counts its users."""

    def __init__(
        self, parameters: list[nn.Parameter], world: int, wire: torch.dtype | None = None, group: Any = None
    ) -> None:
        self.parameters = parameters
        self._world, self._wire, self._group = world, wire, group
        first = parameters[0]
        step = max(1, _ALIGNED // first.element_size())
        sizes = [-(-value.numel() // step) * step for value in parameters]
        self._flat = torch.zeros(sum(sizes) + len(parameters), dtype=first.dtype, device=first.device)
        *parts, self._users = self._flat.split([*sizes, len(parameters)])
        # Gradients of large buckets are divided as they are copied, at no cost. Small ones, which are summed in rank
        # order, are divided last, as other strategies do: the averages of all strategies are equal to the last bit.
        self._divides_first = self._flat.nbytes > SMALL
        self._views = [_like(part, value) for part, value in zip(parts, parameters, strict=True)]
        self.missing: set[int] = set()
        self._absent: list[int] = []
        self._sum: Sum | None = None

    def reset(self) -> None:
        self.missing = set(range(len(self.parameters)))
        self._absent = []
        self._users.fill_(1)

    def take(self, number: int) -> None:
        """Move a parameter's gradient into the bucket."""
        if number not in self.missing:
            raise RuntimeError(
                "A parameter received its gradient twice in one backward pass, the second time after its first one may "
                "have been sent. Activation checkpointing of shared layers does this: use use_reentrant=False."
            )
        self.missing.remove(number)
        parameter, view = self.parameters[number], self._views[number]
        if self._divides_first:
            torch.mul(parameter.grad, 1.0 / self._world, out=view)
        elif parameter.grad is not view:
            view.copy_(parameter.grad)
        parameter.grad = view

    def fill(self) -> None:
        """Take what has arrived before the last backward pass, and zeros for parameters without a gradient."""
        for number in sorted(self.missing):
            if self.parameters[number].grad is not None:
                self.take(number)
                continue
            self.missing.remove(number)
            self._absent.append(number)
            self._views[number].zero_()
            self._users[number] = 0

    def send(self) -> None:
        self._sum = start_sum(self._flat, self._wire, self._group)

    def receive(self) -> None:
        assert self._sum is not None
        self._sum.wait()
        self._sum = None
        if not self._divides_first:
            self._flat.div_(self._world)
        if self._absent:
            users = self._users.tolist()
            for number in self._absent:
                self.parameters[number].grad = self._views[number] if users[number] else None


def _partition(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Distribute parameters over buckets, those whose gradients are computed first in front."""
    closed: list[list[nn.Parameter]] = []
    open_ones: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for value in reversed(parameters):
        kind = value.dtype, value.device
        members = open_ones.setdefault(kind, [])
        members.append(value)
        if sum(member.nbytes for member in members) >= _CAPACITY:
            closed.append(open_ones.pop(kind))
    return [*closed, *open_ones.values()]


def _like(flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Return the beginning of a flat tensor, laid out as autograd lays out the gradient of a parameter."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat[: parameter.numel()].as_strided(parameter.shape, strides)
