"""MXNet's KVStore over ps-lite: workers, servers and a scheduler, each a rank of the gang.

Workers are ranks 0 … w-1, followed by the servers; the scheduler is the last rank. Servers and the scheduler run
ps-lite's loop on a separate thread, so that their rank still answers the driver. In the synchronous kinds the
servers sum gradients and every worker applies the sum; in dist_async a server applies each gradient as it arrives.
"""

from __future__ import annotations

import contextlib
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
from mxnet.kvstore.kvstore import _get_kvstore_server_command_type

from orca.backends.base import Seat, State
from orca.backends.mxnet import local_sockets
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.serving import ServerLoop, give_up
from orca.backends.mxnet.sync import Sync, same_statistics
from orca.launch.rank import RankContext

_LEAVE_SECONDS = 2.0
_CONNECT_SECONDS = 120.0


def role(rank: int, workers: int, servers: int) -> str:
    """Return the ps-lite role of a rank.

    >>> [role(rank, 2, 1) for rank in range(4)]
    ['worker', 'worker', 'server', 'scheduler']
    """
    return "worker" if rank < workers else "server" if rank < workers + servers else "scheduler"


def join(context: RankContext, workers: int, servers: int, kind: str) -> Sync:
    """Start the store together with all ranks, once per rank process."""
    place = context.place
    mine = role(place.rank, workers, servers)
    port = held_port(context)
    one_host = place.local_world == place.world
    root = context.allgather((place.address, port))[-1]
    os.environ.update(
        {
            "DMLC_ROLE": mine,
            "DMLC_PS_ROOT_URI": root[0],
            "DMLC_PS_ROOT_PORT": str(root[1]),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NODE_HOST": place.address,
            "DMLC_LOCAL": str(int(one_host)),
            "PORT": str(port),
        }
    )
    if one_host:
        context.at_exit(lambda: local_sockets.remove(port))
        if mine == "scheduler":
            local_sockets.sweep()
    if mine != "worker":
        server = ServerLoop(servers)
        thread = threading.Thread(target=server.run, name="orca-ps-lite", daemon=True)
        privacy = contextlib.ExitStack()
        privacy.enter_context(local_sockets.private())
        context.at_exit(privacy.close)
        thread.start()
        # ps-lite's loop ends once the workers have disconnected.
        context.at_exit(lambda: thread.join(_LEAVE_SECONDS))
        return ServerSync(context, workers, server if mine == "server" else None, kind)
    with limited(_CONNECT_SECONDS, f"the KVStore's scheduler at {root[0]}:{root[1]}"), local_sockets.private():
        store = mx.kv.create(kind)
    sync = (AsyncStore if kind == "dist_async" else SyncStore)(context, workers, servers, store)
    context.at_exit(sync.leave)
    return sync


def held_port(context: RankContext) -> int:
    """Reserve a port until ps-lite listens on it.

    A bound socket that does not listen keeps other processes off; ps-lite sets SO_REUSEADDR too, so it can bind.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((context.place.address, 0))
    context.at_exit(held.close)
    return int(held.getsockname()[1])


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """End this rank if the block, native code that cannot be interrupted, takes longer."""
    message = (
        f"Could not connect to {what} within {seconds:g} s. Check that the hosts of all ranks can reach each other."
    )
    timer = threading.Timer(seconds, give_up, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Store(Sync):
    """The worker side of the store.

    The store sends from and receives into separate arrays: the model's own may have a memory layout chosen by
    MXNet's convolutions, which the store does not understand.
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
    """dist_sync and dist_device_sync: all gradients as one vector; each server sums a part of it."""

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, state)
        by_dtype: dict[str, list[Weight]] = {}
        for weight in weights:
            by_dtype.setdefault(str(np.dtype(weight.gradient.dtype)), []).append(weight)
        self._groups = [_Group([weight.gradient for weight in alike]) for alike in by_dtype.values()]
        self._plan: list[list[tuple[int, int, int]]] = []
        key = 1
        for group, alike in zip(self._groups, by_dtype.values(), strict=True):
            parts = min(self._servers, group.size)
            edges = [group.size * number // parts for number in range(parts + 1)]
            # MXNet distributes keys over the servers by number.
            self._plan.append([(key + number, edges[number], edges[number + 1]) for number in range(parts)])
            key += self._servers
            values = _Group([weight.value for weight in alike])
            values.join()
            for number, low, high in self._plan[-1]:
                # The store takes its initial value from worker 0, so all workers start from the same weights.
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
        total = mx.nd.array([value])
        self._store.push(0, total)
        self._store.pull(0, out=total)
        return float(total.asscalar())


class _Group:
    """Arrays of one dtype as one vector, with cached views: creating a view costs as much as a small operation."""

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
        """Return a slice of the vector."""
        if (low, high) not in self._parts:
            self._parts[low, high] = self._flat[low:high]
        return self._parts[low, high]

    def join(self) -> None:
        """Copy the arrays into the vector."""
        # Copies are eight times as fast as `concat`, and correct for any memory layout of an array.
        for array, place in zip(self._arrays, self._places, strict=True):
            array.copyto(place)

    def spread(self) -> None:
        """Copy the vector into the arrays."""
        for array, place in zip(self._arrays, self._places, strict=True):
            place.copyto(array)


class AsyncStore(_Store):
    """dist_async: pushes gradients and pulls the servers' current weights, without waiting for other workers."""

    keeps_step = False

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, None)
        self._keys = list(range(len(weights)))
        self._outgoing = [mx.nd.zeros(weight.value.shape, dtype=weight.value.dtype) for weight in weights]
        self._incoming = [mx.nd.zeros(weight.value.shape, dtype=weight.value.dtype) for weight in weights]
        self._store.init(self._keys, self._plain_values())
        # MXNet would send the optimizer to the servers as a pickle over ps-lite, which anybody can connect to.
        sizes = [weight.value.size for weight in weights]
        self._context.allgather((sizes, _for_servers(optimizer, weights)) if self._first else None)
        if self._first and optimizer.multi_precision:
            self._store._send_command_to_servers(_get_kvstore_server_command_type("kSetMultiPrecision"), "")
        self._first_rate = optimizer.lr
        self._set_rate(state)
        self._context.allgather(None)

    @property
    def _first(self) -> bool:
        return self._context.place.rank == 0

    def _plain_values(self) -> list[Any]:
        return [mx.nd.array(weight.value.asnumpy(), dtype=weight.value.dtype) for weight in self._weights]

    def _command(self, **command: Any) -> None:
        self._store._send_command_to_servers(0, "orca:" + json.dumps(command))

    def reload(self, state: State | None) -> None:
        """Copy worker 0's weights to the servers."""
        self._set_rate(state)
        mx.nd.waitall()
        self._store._barrier()
        if self._first:
            self._command(assign=True)
            self._store.push(self._keys, self._plain_values())
            mx.nd.waitall()
            self._command(assign=False)
        self._store._barrier()

    def _set_rate(self, state: State | None) -> None:
        """Record the servers' initial learning rate, to notice when a callback changes it."""
        assert self.learner is not None
        self._rate = self._first_rate if state is None else state["numbers"].get("lr", self._first_rate)
        self.learner.optimizer.lr = self._rate

    def update(self) -> None:
        assert self.learner is not None
        rate = self.learner.optimizer.lr
        if self._first and rate != self._rate:
            self._rate = rate
            self._command(rate=rate)
        for key, weight, outgoing in zip(self._keys, self._weights, self._outgoing, strict=True):
            weight.gradient.copyto(outgoing)
            self._store.push(key, outgoing, priority=-key)
        self._pull()

    def _pull(self) -> None:
        for key, weight, incoming in zip(self._keys, self._weights, self._incoming, strict=True):
            self._store.pull(key, out=incoming, priority=-key)
            incoming.copyto(weight.value)

    def total(self, value: float) -> float:
        # Workers do not wait for each other: each worker's rows are a step of their own.
        return value

    def settle(self, statistics: Sequence[Any]) -> None:
        mx.nd.waitall()
        self._store._barrier()
        self._pull()
        mx.nd.waitall()
        super().settle(statistics)

    def optimizer_state(self) -> State:
        return merge_server_states(self._context.allgather(None))


def _for_servers(optimizer: Any, weights: Sequence[Weight]) -> Any:
    """Copy the optimizer with Gluon's multipliers keyed by number, as servers do not have the parameters."""
    result = copy.copy(optimizer)
    if weights[0].parameter is not None:
        result.lr_mult = {number: weight.parameter.lr_mult for number, weight in enumerate(weights)}
        result.wd_mult = {number: weight.parameter.wd_mult for number, weight in enumerate(weights)}
    return result


class ServerSync(Sync):
    """The side of the servers and the scheduler: no data and no model; they only take part in collective calls."""

    def __init__(self, context: RankContext, workers: int, server: ServerLoop | None, kind: str) -> None:
        super().__init__()
        self._context = context
        self.world = workers
        self._server = server
        self.keeps_step = kind != "dist_async"

    def seat(self, rank: int) -> Seat:
        return Seat(None, self.world)

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        if not self.keeps_step:
            sizes, optimizer = self._context.allgather(None)[0]
            if self._server is not None:
                self._server.expect(sizes, state)
                self._server.use(optimizer)
            self._context.allgather(None)

    def reload(self, state: State | None) -> None:
        if self._server is not None and not self.keeps_step:
            self._server.expect(None, state)

    def settle(self, statistics: Sequence[Any]) -> None:
        same_statistics(self._context, None)

    def optimizer_state(self) -> State:
        if not self.keeps_step:
            self._context.allgather(None if self._server is None else self._server.state())
        return {}


def merge_server_states(states: Sequence[Any]) -> State:
    """Merge the optimizer states of all servers; those of big arrays are concatenated from their slices."""
    servers = sorted((state for state in states if state is not None), key=lambda state: state["server"])
    merged: dict[str, Any] = {}

    def join_slices(parts: list[Any]) -> Any:
        first = parts[0]
        if isinstance(first, list):
            return [join_slices([part[index] for part in parts]) for index in range(len(first))]
        return np.concatenate([np.reshape(part, -1) for part in parts]) if isinstance(first, np.ndarray) else first

    for key in sorted({key for server in servers for key in server["states"]}, key=int):
        merged[key] = join_slices([server["states"][key] for server in servers if key in server["states"]])
    counts = {key: count for server in servers for key, count in server["counts"].items()}
    return {"states": merged, "counts": counts, "numbers": servers[0]["numbers"], "schedule": servers[0]["schedule"]}
