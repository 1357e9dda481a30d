"""MXNet's own KVStore over ps-lite: workers, servers and a scheduler, each a rank of the gang.

Workers are the ranks 0 … w-1, servers those after them, the scheduler is the last. Servers and the scheduler run
ps-lite's loop on a thread of their own, so that their rank still answers the driver. In the synchronous kinds the
servers sum gradients and every worker applies the sum; in dist_async a server applies each gradient as it comes.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np

from orca.backends.base import Seat, State
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.serving import Serving, give_up
from orca.backends.mxnet.sync import Sync, same_statistics
from orca.launch.rank import RankContext

_LEAVE_SECONDS = 2.0
_CONNECT_SECONDS = 120.0


def role(rank: int, workers: int, servers: int) -> str:
    """What a rank is for ps-lite.

    >>> [role(rank, 2, 1) for rank in range(4)]
    ['worker', 'worker', 'server', 'scheduler']
    """
    return "worker" if rank < workers else "server" if rank < workers + servers else "scheduler"


def join(context: RankContext, workers: int, servers: int, kind: str) -> Sync:
    """Bring the store up together with all ranks, once in a rank's life."""
    mine = role(context.place.rank, workers, servers)
    port = held_port(context) if mine == "scheduler" else 0
    root = context.allgather((context.place.address, port))[-1]
    os.environ.update(
        {
            "DMLC_ROLE": mine,
            "DMLC_PS_ROOT_URI": root[0],
            "DMLC_PS_ROOT_PORT": str(root[1]),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NODE_HOST": context.place.address,
        }
    )
    if mine != "worker":
        serving = Serving(servers)
        thread = threading.Thread(target=serving.run, name="orca-ps-lite", daemon=True)
        thread.start()
        # ps-lite leaves when the workers have left.
        context.at_exit(lambda: thread.join(_LEAVE_SECONDS))
        return Served(context, workers, serving if mine == "server" else None, kind)
    with limited(_CONNECT_SECONDS, f"the KVStore's scheduler at {root[0]}:{root[1]}"):
        store = mx.kv.create(kind)
    sync = (AsyncStore if kind == "dist_async" else SyncStore)(context, workers, servers, store)
    context.at_exit(sync.leave)
    return sync


def held_port(context: RankContext) -> int:
    """A port that nobody else takes before ps-lite listens on it.

    A socket that is bound and does not listen keeps others off; ps-lite's own says SO_REUSEADDR too, and may join it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((context.place.address, 0))
    context.at_exit(held.close)
    return int(held.getsockname()[1])


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """End this rank if the block, native code that nothing interrupts, takes longer."""
    words = f"Could not connect to {what} within {seconds:g} s. Check that the hosts of all ranks reach each other."
    timer = threading.Timer(seconds, give_up, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Store(Sync):
    """A worker's side of the store.

    The store gets arrays of its own to send and to receive into. A model's arrays may lie in memory in an order that
    MXNet's convolutions like, which the store does not understand.
    """

    def __init__(self, context: RankContext, workers: int, servers: int, store: Any) -> None:
        super().__init__()
        self._context = context
        self.world = workers
        self._servers = servers
        self._store: Any = store

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, state)
        self._weights = list(weights)

    def settle(self, statistics: Sequence[Any]) -> None:
        same_statistics(self._context, statistics)

    def leave(self) -> None:
        mx.nd.waitall()
        self._store = None


class SyncStore(_Store):
    """dist_sync and dist_device_sync: all gradients as one vector, of which each server sums a part."""

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, state)
        kinds: dict[str, list[Weight]] = {}
        for weight in weights:
            kinds.setdefault(str(np.dtype(weight.gradient.dtype)), []).append(weight)
        self._groups = [_Group([weight.gradient for weight in alike]) for alike in kinds.values()]
        self._plan: list[list[tuple[int, int, int]]] = []
        key = 1
        for group, alike in zip(self._groups, kinds.values(), strict=True):
            parts = min(self._servers, group.size)
            edges = [group.size * number // parts for number in range(parts + 1)]
            # MXNet spreads keys over the servers by their numbers.
            self._plan.append([(key + number, edges[number], edges[number + 1]) for number in range(parts)])
            key += self._servers
            values = _Group([weight.value for weight in alike])
            values.join()
            for number, low, high in self._plan[-1]:
                # A store begins with what worker 0 gives to it, so all begin with these weights.
                self._store.init(number, values.part(low, high))
                self._store.pull(number, out=values.part(low, high))
            values.spread()
        self._store.init(0, mx.nd.zeros(1))

    def reduce(self) -> None:
        for group, plan in zip(self._groups, self._plan, strict=True):
            group.join()
            for key, low, high in plan:
                part = group.part(low, high)
                self._store.push(key, part)
                self._store.pull(key, out=part)
            group.spread()

    def total(self, value: float) -> float:
        told = mx.nd.array([value])
        self._store.push(0, told)
        self._store.pull(0, out=told)
        return float(told.asscalar())


class _Group:
    """Arrays of one type as one vector, whose views are made once: making one costs as much as a small operation."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = list(arrays)
        edges = np.cumsum([0, *(array.size for array in arrays)]).tolist()
        self.size = edges[-1]
        self._flat = mx.nd.zeros(self.size, dtype=self._arrays[0].dtype)
        self._places = [
            self._flat[low:high].reshape(array.shape)
            for array, (low, high) in zip(self._arrays, itertools.pairwise(edges), strict=True)
        ]
        self._parts: dict[tuple[int, int], Any] = {(0, self.size): self._flat}

    def part(self, low: int, high: int) -> Any:
        """A part of the vector."""
        if (low, high) not in self._parts:
            self._parts[low, high] = self._flat[low:high]
        return self._parts[low, high]

    def join(self) -> None:
        """Bring the arrays into the vector."""
        # Copies are eight times as fast as `concat`, and right for any layout that a convolution has given to an array.
        for array, place in zip(self._arrays, self._places, strict=True):
            array.copyto(place)

    def spread(self) -> None:
        """Bring the vector into the arrays."""
        for array, place in zip(self._arrays, self._places, strict=True):
            place.copyto(array)


class AsyncStore(_Store):
    """dist_async: pushes gradients and pulls what the servers have made of everybody's by then."""

    keeps_step = False

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, None)
        self._keys = list(range(len(weights)))
        self._sent = [mx.nd.zeros(weight.value.shape, dtype=weight.value.dtype) for weight in weights]
        self._got = [mx.nd.zeros(weight.value.shape, dtype=weight.value.dtype) for weight in weights]
        self._store.init(self._keys, self._plain_values())
        self._context.allgather([weight.value.size for weight in weights] if self._first else None)
        if self._first:
            self._store.set_optimizer(_told(optimizer, weights))
        self._first_rate = optimizer.lr
        self._take_rate(state)
        self._store._barrier()

    @property
    def _first(self) -> bool:
        return self._context.place.rank == 0

    def _plain_values(self) -> list[Any]:
        return [mx.nd.array(weight.value.asnumpy(), dtype=weight.value.dtype) for weight in self._weights]

    def _tell(self, **order: Any) -> None:
        self._store._send_command_to_servers(0, "orca:" + json.dumps(order))

    def reload(self, state: State | None) -> None:
        """Put this worker's weights onto the servers."""
        self._take_rate(state)
        mx.nd.waitall()
        self._store._barrier()
        if self._first:
            self._tell(assign=True)
            self._store.push(self._keys, self._plain_values())
            mx.nd.waitall()
            self._tell(assign=False)
        self._store._barrier()

    def _take_rate(self, state: State | None) -> None:
        """Know the rate with which the servers begin, to notice when a callback changes it."""
        assert self.learner is not None
        self._rate = self._first_rate if state is None else state["numbers"].get("lr", self._first_rate)
        self.learner.optimizer.lr = self._rate

    def update(self) -> None:
        assert self.learner is not None
        rate = self.learner.optimizer.lr
        if self._first and rate != self._rate:
            self._rate = rate
            self._tell(rate=rate)
        for key, weight, sent in zip(self._keys, self._weights, self._sent, strict=True):
            weight.gradient.copyto(sent)
            self._store.push(key, sent, priority=-key)
        self._pull()

    def _pull(self) -> None:
        for key, weight, got in zip(self._keys, self._weights, self._got, strict=True):
            self._store.pull(key, out=got, priority=-key)
            got.copyto(weight.value)

    def total(self, value: float) -> float:
        # Workers do not wait for each other: each one's rows are a step.
        return value

    def settle(self, statistics: Sequence[Any]) -> None:
        mx.nd.waitall()
        self._store._barrier()
        self._pull()
        mx.nd.waitall()
        super().settle(statistics)

    def optimizer_state(self) -> State:
        return gathered(self._context.allgather(None))


def _told(optimizer: Any, weights: Sequence[Weight]) -> Any:
    """The optimizer as servers need it: Gluon's multipliers by number, as parameters do not travel."""
    made = copy.copy(optimizer)
    if weights[0].parameter is not None:
        made.lr_mult = {number: weight.parameter.lr_mult for number, weight in enumerate(weights)}
        made.wd_mult = {number: weight.parameter.wd_mult for number, weight in enumerate(weights)}
    return made


class Served(Sync):
    """The side of a server and of the scheduler: no data, no model; they answer where workers ask all ranks."""

    def __init__(self, context: RankContext, workers: int, serving: Serving | None, kind: str) -> None:
        super().__init__()
        self._context = context
        self.world = workers
        self._serving = serving
        self.keeps_step = kind != "dist_async"

    def seat(self, rank: int) -> Seat:
        return Seat(None, self.world)

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        if not self.keeps_step:
            sizes = self._context.allgather(None)[0]
            if self._serving is not None:
                self._serving.expect(sizes, state)

    def reload(self, state: State | None) -> None:
        if self._serving is not None and not self.keeps_step:
            self._serving.expect(None, state)

    def settle(self, statistics: Sequence[Any]) -> None:
        same_statistics(self._context, None)

    def optimizer_state(self) -> State:
        if not self.keeps_step:
            self._context.allgather(None if self._serving is None else self._serving.state())
        return {}


def gathered(told: Sequence[Any]) -> State:
    """The optimizer's state of all servers, those of big arrays put together from their slices."""
    servers = sorted((part for part in told if part is not None), key=lambda part: part["server"])
    whole: dict[str, Any] = {}

    def joined(parts: list[Any]) -> Any:
        first = parts[0]
        if isinstance(first, list):
            return [joined([part[index] for part in parts]) for index in range(len(first))]
        return np.concatenate([np.reshape(part, -1) for part in parts]) if isinstance(first, np.ndarray) else first

    for key in sorted({key for server in servers for key in server["states"]}, key=int):
        whole[key] = joined([server["states"][key] for server in servers if key in server["states"]])
    counts = {key: count for server in servers for key, count in server["counts"].items()}
    return {"states": whole, "counts": counts, "numbers": servers[0]["numbers"], "schedule": servers[0]["schedule"]}
