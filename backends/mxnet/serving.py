"""What a server of the KVStore does with what it is sent: it applies gradients, or takes weights as they come."""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
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
"""The number by which MXNet spreads small arrays over the servers."""
_LAST_WORDS_SECONDS = 0.3


def give_up(words: str) -> NoReturn:
    """End this process from any of its threads, which the driver notices at once."""
    print(words, file=sys.stderr, flush=True)
    # What was printed travels to the driver on a thread.
    time.sleep(_LAST_WORDS_SECONDS)
    os._exit(1)


class Serving:
    """ps-lite's loop, with an updater of ours. It serves the scheduler too, which is sent nothing."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._store: Any = None
        self._updater: Any = None
        self._first: State = {}
        self._assigns = False
        self._sizes: Sequence[int] = ()
        self._wanted: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._bound = int(os.environ.get("MXNET_KVSTORE_BIGARRAY_BOUND", str(1000 * 1000)))

    def run(self) -> None:
        """Serve until the workers leave."""
        try:
            self._store = mx.kv.create("dist")
            prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
            self._controller = prototype(self._command)
            check_call(_LIB.MXKVStoreRunServer(self._store.handle, self._controller, None))
        except BaseException:
            # Workers would wait for ever for a rank that is alive and does not serve.
            give_up(traceback.format_exc())

    def _command(self, number: int, body: bytes, _: Any) -> None:
        try:
            if body.startswith(b"orca:"):
                order = json.loads(body[5:])
                self._assigns = order.get("assign", self._assigns)
                if "rate" in order:
                    self._updater.optimizer.lr = order["rate"]
                return
            with self._lock:
                self._updater = mx.optimizer.get_updater(pickle.loads(body))
                self._first = facts(self._updater.optimizer)
                if self._wanted:
                    load_facts(self._updater.optimizer, self._wanted)
            self._store._set_updater(self._update)
        except BaseException:
            # A server that goes on without its optimizer would train nonsense.
            give_up(traceback.format_exc())

    def _update(self, key: Any, given: Any, weight: Any) -> None:
        try:
            if self._assigns:
                weight[:] = given
                return
            with self._lock:
                self._restore(int(key), weight)
                self._updater(key, given, weight)
        except BaseException:
            give_up(traceback.format_exc())

    def expect(self, sizes: Sequence[int] | None, state: State | None) -> None:
        """Hear how large the arrays are, and go on from a state of the optimizer."""
        with self._lock:
            self._sizes = sizes if sizes is not None else self._sizes
            if self._updater is not None:
                reset(self._updater, self._first)
            self._wanted = {} if state is None else {**state, "states": dict(state["states"])}
            if self._updater is not None and state is not None:
                load_facts(self._updater.optimizer, state)

    def _restore(self, key: int, weight: Any) -> None:
        """Give this server its slice of a state that was told, when the array is first seen."""
        told = self._wanted.get("states", {}).pop(str(key), None)
        if told is None:
            return
        start, stop = self._slice(self._sizes[key])
        fresh = self._updater.optimizer.create_state_multi_precision(key, weight)
        self._updater.states[key] = like(_cut(told, start, stop), fresh)
        self._updater.states_synced[key] = True

    def _slice(self, size: int) -> tuple[int, int]:
        """Which part of an array of this size lies here: all of it, unless it is big."""
        if size < self._bound:
            return 0, size
        edges = [math.floor(size / self._servers * number + 0.5) for number in range(self._servers + 1)]
        mine = self._store.rank
        return edges[mine], edges[mine + 1]

    def state(self) -> State:
        """The optimizer's state of what lies here."""
        if self._updater is None:
            return {"server": self._store.rank, "states": {}, "counts": {}, "numbers": {}, "schedule": None}
        with self._lock:
            states = {str(key): plain(state) for key, state in self._updater.states.items()}
            left = {
                key: _cut(told, *self._slice(self._sizes[int(key)]))
                for key, told in self._wanted.get("states", {}).items()
                if self._sizes[int(key)] >= self._bound or int(key) * _SPREAD % self._servers == self._store.rank
            }
            return {"server": self._store.rank, "states": {**left, **states}, **facts(self._updater.optimizer)}


def _cut(told: Any, start: int, stop: int) -> Any:
    if isinstance(told, list):
        return [_cut(part, start, stop) for part in told]
    return np.reshape(told, -1)[start:stop] if isinstance(told, np.ndarray) else told
