"""The asynchronous parameter server: dedicated ranks own slices, workers push gradients and pull parameters.

Workers are ranks 0 … n-1, servers the ranks after them. A worker sends each server its part of the gradient and waits
for the new values of that part. A server applies each gradient separately, as it arrives, and delays a worker only
while it is more than `staleness` steps ahead of the slowest one. Messages are tensors over a separate process group,
received in order of arrival.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from orca.backends.base import Seat, State
from orca.backends.torch.data_parallel import Collective
from orca.backends.torch.server_sync import check_optimizer, own_slices, slice_state, slices, whole_state
from orca.backends.torch.state import to_plain, to_torch
from orca.launch.base import Rank

_PUSH, _TICK, _IDLE = range(3)
_DONE = float("inf")
_HEAD = 2  # a message starts with its kind and the worker's clock


class AsyncServer(Collective):
    """Both sides of the parameter server; the rank decides whether it is a worker or a server."""

    lockstep = False

    def __init__(self, workers: int, servers: int, rank: int, staleness: int | None) -> None:
        super().__init__(workers)
        self._servers = servers
        self._rank = rank
        self._staleness = staleness
        self._mail: Any = None
        self._clock = 0

    @property
    def _serves(self) -> bool:
        return self._rank >= self.world

    @property
    def _owner(self) -> int:
        """Index of the slice that this rank owns, if it is a server."""
        return self._rank - self.world

    def seat(self, place: Rank) -> Seat:
        return Seat(None if self._serves else place.rank, self.world)

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        check_optimizer(optimizer)
        super().attach(model, optimizer)
        self.share(model)
        # A worker's step may take any time.
        self._mail = dist.new_group(timeout=datetime.timedelta(days=30))
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        saved = optimizer.state_dict() if optimizer.state else None
        trained = {id(value) for group in self._groups for value in group if value.requires_grad}
        self._tables = slices(optimizer, trained, self._servers, self._owner if self._serves else None)
        if self._serves:
            own_slices(optimizer, self._tables)
            if saved is not None:
                self.load_optimizer_state(dict(to_plain(saved)))
        self._length = sum(table.values.numel() // self._servers for table in self._tables)
        wide = any(table.values.dtype == torch.float64 for table in self._tables)
        self._type = torch.float64 if wide else torch.float32

    def zero_grad(self) -> None:
        for table in self._tables:
            table.clear()

    def reduce(self) -> None:
        for table in self._tables:
            table.collect()

    def take_gradients(self) -> None:
        self.reduce()

    def trained(self) -> list[nn.Parameter]:
        return [member for table in self._tables for member in table.members]

    def update(self) -> None:
        """Push this worker's gradients and pull the servers' current values."""
        self._exchange(_PUSH)

    def skip(self) -> None:
        """Advance only the clock, in a step without rows for this worker."""
        self._exchange(_TICK)

    def _exchange(self, kind: int) -> None:
        self._clock += 1
        answers = [torch.empty(self._length, dtype=self._type) for _ in range(self._servers)]
        # Receive before sending: a server that cannot deliver an answer accepts no message either.
        waiting = [
            dist.irecv(answer, src=self.world + server, group=self._mail) for server, answer in enumerate(answers)
        ]
        self._send(kind)
        for work in waiting:
            work.wait()
        with torch.no_grad():
            for server, answer in enumerate(answers):
                for part, values in self._parts(answer, server, "values"):
                    part.copy_(values)

    def _send(self, kind: int) -> None:
        """Send each server its part of the gradients, or only the kind of message."""
        pending = []
        for server in range(self._servers):
            message = torch.zeros(_HEAD + self._length, dtype=self._type)
            message[0], message[1] = kind, self._clock
            if kind == _PUSH:
                for part, field in self._parts(message[_HEAD:], server, "gradients"):
                    field.copy_(part)
            pending.append(dist.isend(message, dst=self.world + server, group=self._mail))
        for work in pending:
            work.wait()

    def _parts(self, flat: torch.Tensor, server: int, what: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pair each table's slice of one server with its part of a message."""
        pairs, offset = [], 0
        for table in self._tables:
            whole: torch.Tensor = getattr(table, what)
            size = whole.numel() // self._servers
            pairs.append((whole[server * size : (server + 1) * size], flat[offset : offset + size]))
            offset += size
        return pairs

    def _serve(self) -> None:
        """Serve an epoch, until all workers have reached its end."""
        clocks = dict.fromkeys(range(self.world), 0.0)
        unanswered: dict[int, float] = {}
        message = torch.empty(_HEAD + self._length, dtype=self._type)
        while any(clock != _DONE for clock in clocks.values()):
            worker = dist.recv(message, group=self._mail)
            kind, clock = int(message[0]), float(message[1])
            if kind == _PUSH:
                for (_, gradient), table in zip(
                    self._parts(message[_HEAD:], self._owner, "values"), self._tables, strict=True
                ):
                    table.owned.grad = gradient.to(table.owned, copy=True)
                self.optimizer.step()
            clocks[worker] = _DONE if kind == _IDLE else clock
            if kind != _IDLE:
                unanswered[worker] = clock
            # A worker that has finished its epoch delays no other.
            slowest = min(clocks.values())
            for waiting, reached in list(unanswered.items()):
                if self._staleness is None or reached - slowest <= self._staleness:
                    del unanswered[waiting]
                    self._answer(waiting)

    def _answer(self, worker: int) -> None:
        answer = torch.empty(self._length, dtype=self._type)
        for (_, field), table in zip(self._parts(answer, self._owner, "values"), self._tables, strict=True):
            field.copy_(table.owned.data)
        dist.send(answer, dst=worker, group=self._mail)

    def settle(self) -> None:
        """Wait for all workers at the end of an epoch, then send the servers' values to all ranks."""
        if self._serves:
            self._serve()
        else:
            self._send(_IDLE)
        dist.barrier()
        self._clock = 0
        for table in self._tables:
            size = table.values.numel() // self._servers
            for server in range(self._servers):
                dist.broadcast(table.values[server * size : (server + 1) * size], src=self.world + server)
        super().settle()

    def total(self, value: torch.Tensor) -> torch.Tensor:
        # Workers do not wait for each other's counts: each assumes that the others have the same.
        return value * self.world

    def optimizer_state(self) -> State:
        own = [to_plain(dict(self.optimizer.state.get(table.owned, {}))) for table in self._tables]
        options = [{**group, "params": []} for group in self.optimizer.param_groups]
        replies: list[Any] = [None] * (self.world + self._servers)
        dist.all_gather_object(replies, (own, options))
        servers = replies[self.world :]
        entries = [[to_torch(server[0][number]) for server in servers] for number in range(len(self._tables))]
        return dict(to_plain(whole_state(self._tables, entries, servers[0][1], self._groups)))

    def load_optimizer_state(self, state: State) -> None:
        if not self._serves:
            return
        members = [value for group in self._groups for value in group]
        self.optimizer.load_state_dict(slice_state(self._tables, to_torch(state), members, self._owner, self._servers))
