"""The server side of the KVStore: applies pushed gradients, or stores pushed weights."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from orca.backends.base import State
from orca.backends.mxnet.optimizers import facts, load_facts, reset
from orca.backends.mxnet.tensors import like, plain

_SPREAD = 9973
"""The factor with which MXNet distributes small arrays over the servers."""
_FLUSH_SECONDS = 0.3


def give_up(message: str) -> NoReturn:
    """End this process from any thread; the driver notices at once."""
    print(message, file=sys.stderr, flush=True)
    # A thread forwards the output to the driver.
    time.sleep(_FLUSH_SECONDS)
    os._exit(1)


class ServerLoop:
    """ps-lite's loop with Orca's updater; also runs on the scheduler, which receives no arrays."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._store: Any = None
        self._updater: Any = None
        self._initial: State = {}
        self._assigns = False
        self._sizes: Sequence[int] = ()
        self._pending: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._bound = int(os.environ.get("MXNET_KVSTORE_BIGARRAY_BOUND", str(1000 * 1000)))

    def run(self) -> None:
        """Serve until the workers disconnect."""
        try:
            self._store = mx.kv.create("dist")
            prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
            self._controller = prototype(self._command)
            check_call(_LIB.MXKVStoreRunServer(self._store.handle, self._controller, None))
        except BaseException:
            # Workers would wait forever for a rank that is alive but does not serve.
            give_up(traceback.format_exc())

    def _command(self, number: int, body: bytes, _: Any) -> None:
        # Whoever reaches the port can send commands, so none of them may run code, as a pickle would.
        if not body.startswith(b"orca:"):
            print("Ignored a command that is not Orca's.", file=sys.stderr, flush=True)
            return
        try:
            command = json.loads(body[5:])
            self._assigns = command.get("assign", self._assigns)
            if "rate" in command:
                self._updater.optimizer.lr = command["rate"]
        except BaseException:
            give_up(traceback.format_exc())

    def use(self, optimizer: Any) -> None:
        """Apply pushed gradients with this optimizer from now on."""
        with self._lock:
            self._updater = mx.optimizer.get_updater(optimizer)
            self._initial = facts(optimizer)
            if self._pending:
                load_facts(optimizer, self._pending)
        self._store._set_updater(self._update)

    def _update(self, key: Any, pushed: Any, weight: Any) -> None:
        try:
            if self._assigns:
                weight[:] = pushed
                return
            with self._lock:
                self._restore(int(key), weight)
                self._updater(key, pushed, weight)
        except BaseException:
            give_up(traceback.format_exc())

    def expect(self, sizes: Sequence[int] | None, state: State | None) -> None:
        """Set the sizes of the arrays and the optimizer state to resume from."""
        with self._lock:
            self._sizes = sizes if sizes is not None else self._sizes
            if self._updater is not None:
                reset(self._updater, self._initial)
            self._pending = {} if state is None else {**state, "states": dict(state["states"])}
            if self._updater is not None and state is not None:
                load_facts(self._updater.optimizer, state)

    def _restore(self, key: int, weight: Any) -> None:
        """Load this server's slice of a pending state when the array is first updated."""
        state = self._pending.get("states", {}).pop(str(key), None)
        if state is None:
            return
        start, stop = self._slice(self._sizes[key])
        fresh = self._updater.optimizer.create_state_multi_precision(key, weight)
        self._updater.states[key] = like(_cut(state, start, stop), fresh)
        self._updater.states_synced[key] = True

    def _slice(self, size: int) -> tuple[int, int]:
        """Return the part of an array of this size that this server stores: all of it, unless it is big."""
        if size < self._bound:
            return 0, size
        edges = [math.floor(size / self._servers * number + 0.5) for number in range(self._servers + 1)]
        mine = self._store.rank
        return edges[mine], edges[mine + 1]

    def state(self) -> State:
        """Return the optimizer state of the arrays on this server."""
        if self._updater is None:
            return {"server": self._store.rank, "states": {}, "counts": {}, "numbers": {}, "schedule": None}
        with self._lock:
            states = {str(key): plain(state) for key, state in self._updater.states.items()}
            pending = {
                key: _cut(state, *self._slice(self._sizes[int(key)]))
                for key, state in self._pending.get("states", {}).items()
                if self._sizes[int(key)] >= self._bound or int(key) * _SPREAD % self._servers == self._store.rank
            }
            return {"server": self._store.rank, "states": {**pending, **states}, **facts(self._updater.optimizer)}


def _cut(state: Any, start: int, stop: int) -> Any:
    if isinstance(state, list):
        return [_cut(part, start, stop) for part in state]
    return np.reshape(state, -1)[start:stop] if isinstance(state, np.ndarray) else state
