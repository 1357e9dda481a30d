"""What runs inside every rank's process, whatever runtime started it: connect, run calls, report, exit."""

from __future__ import annotations

import gc
import io
import logging
import os
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import psutil
import threadpoolctl

from orca.core.machine import host_id, usable_cpus
from orca.launch.base import Delivery, Handle, Hello, LogLine, Meeting, Rank
from orca.launch.channel import BEAT, GOODBYE, Link, connect, pack

T = TypeVar("T")
BEAT_SECONDS = 1.0
_ORPHAN_EXIT = 70


_ATOMS = (type(None), bool, int, float, str, bytes)
"""Types of values that cannot change, so that one object can stand for all equal ones."""


def _unpacked(blobs: list[bytes]) -> list[Any]:
    """Return gathered values. Those of a barrier are all the same: unpacking one is enough, however many ranks."""
    if len(set(map(id, blobs))) == 1:
        value = pickle.loads(blobs[0])
        if type(value) in _ATOMS:
            return [value] * len(blobs)
    return [pickle.loads(blob) for blob in blobs]


class RankContext:
    """A rank's view of its gang: its place, its data, and how to reach the driver and the other ranks."""

    def __init__(self, place: Rank, link: Link) -> None:
        self.place = place
        self.sources: Mapping[str, Sequence[Handle]] = {}
        self.memory: dict[str, Any] = {}
        """Values kept between calls, for as long as the process lives: process groups, replicas."""
        self.call_number = 0
        """The number that the driver gave to the current call."""
        self._link = link
        self._gathered: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._turns: dict[int, int] = {}
        self._closers: list[Callable[[], None]] = []

    def emit(self, event: object) -> None:
        """Send an event, which has to be picklable, to the driver."""
        self._link.send(("event", self.call_number, event))

    def allgather(self, value: Any, members: int | None = None) -> list[Any]:
        """Return every rank's value, in rank order, on every rank. For small values only: routed through the driver.

        With `members` only that many of the first ranks take part.
        """
        members = members or self.place.world
        if members == 1:
            return [value]
        turn = self._turns[members] = self._turns.get(members, 0) + 1
        self._link.send_packed(pickle.dumps(("gather", self.call_number, (members, turn), pack(value)), protocol=5))
        return _unpacked(self._gathered.get())

    def ask(self, question: object) -> Any:
        """Return the driver's answer to rank 0's question, on every rank; all ranks call it, as `allgather`."""
        answer = None
        if self.place.rank == 0:
            self._link.send(("question", self.call_number, question))
            answer = self._answers.get()
        return self.allgather(answer)[0]

    def once(self, key: str, create: Callable[[], T]) -> T:
        """Return the value kept under a key, created by the first call of this process."""
        if key not in self.memory:
            self.memory[key] = create()
        value: T = self.memory[key]
        return value

    def at_exit(self, close: Callable[[], None]) -> None:
        """Register something to be closed when the rank leaves the gang."""
        self._closers.append(close)

    def close(self) -> None:
        for close in reversed(self._closers):
            try:
                close()
            except Exception:
                logging.getLogger("orca").exception("closing rank %d", self.place.rank)
        self._closers.clear()
        self.memory.clear()


class _Tee(io.TextIOBase):
    """Passes lines on to the old stream and, as log events, to the driver."""

    def __init__(self, stream: TextIO, emit: Callable[[str], None], echo: bool) -> None:
        self._stream = stream
        self._echo = echo
        self._emit = emit
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        if self._echo:
            self._stream.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._emit(line.split("\r")[-1])
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"


def _describe(error: BaseException) -> dict[str, Any]:
    """Turn an exception into something that can always be pickled: its text, and the object where possible."""
    try:
        text, message = "".join(traceback.format_exception(error)), str(error)
    except Exception:
        text, message = "", "(its text cannot be displayed)"
    blob: bytes | None
    try:
        from tblib import pickling_support

        pickling_support.install(error)
        blob = pack(error)
        pickle.loads(blob)
    except Exception:
        blob = None
    return {"type": type(error).__name__, "message": message, "traceback": text, "error": blob}


def _run(context: RankContext, task: bytes, deliveries: bytes, alone: bool) -> tuple[str, Any]:
    """Run a call; `alone` says that nothing is kept out of garbage collection in this process yet.

    A process forked from one with packages imported keeps those out already; in another one they come with the task.
    Scanning a whole framework again and again slows training down.
    """
    try:
        fn, args = pickle.loads(task)
        if alone:
            gc.freeze()
        opened: Mapping[str, Delivery] = pickle.loads(deliveries)
        context.sources = {name: delivery.open(context) for name, delivery in opened.items()}
        return "result", pack(fn(context, *args))
    except BaseException as error:
        return "error", _describe(error)
    finally:
        context.sources = {}
        if alone:
            gc.unfreeze()


def _extend_path(entries: list[str]) -> None:
    """Make modules next to the user's script importable here too: they are pickled by name."""
    sys.path.extend(entry for entry in entries if entry not in sys.path and os.path.isdir(entry))


class _Service:
    """A rank's end of the channel: it receives calls, and sends heartbeats until the rank leaves."""

    def __init__(
        self, meeting: Meeting, rank: int, at_beat: Callable[[], None], devices: tuple[str, ...] | None
    ) -> None:
        self._at_beat = at_beat
        me = psutil.Process()
        connection = connect(
            meeting,
            lambda address: Hello(
                rank, os.uname().nodename, host_id(), address, me.pid, me.create_time(), usable_cpus(), devices
            ),
        )
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self.link = Link(connection, self._receive)
        self.link.open()
        kind, place = self.inbox.get()
        assert kind == "welcome", kind
        self.context = RankContext(place, self.link)
        threading.Thread(target=self._beat, name="orca-beat", daemon=True).start()

    def close(self) -> None:
        self._stopping.set()
        self.context.close()
        self.link.close()

    def _receive(self, message: Any) -> None:
        if message is GOODBYE:
            if not self._stopping.is_set():
                # The driver is gone or has given up this gang. A rank may be deep inside a collective that never
                # returns, so exiting the hard way is the only sure way.
                os._exit(_ORPHAN_EXIT)
        elif message[0] == "gathered":
            self.context._gathered.put(message[1])
        elif message[0] == "ask":
            self._at_beat()
            self.link.send(("here", 0))
        elif message[0] == "answer":
            self.context._answers.put(message[1])
        else:
            self.inbox.put(message)

    def _beat(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            self.link.send_packed(BEAT)
            self._at_beat()


@contextmanager
def _reported_output(context: RankContext, echo: bool) -> Iterator[None]:
    """Send what the rank prints to the driver as well; without `echo` only there."""

    def reporting(name: str) -> Callable[[str], None]:
        return lambda line: context.emit(LogLine(context.place.rank, line, name))

    # Looked up here, not at import: sys.stdout differs between a forked rank and a runtime's own worker.
    streams = sys.stdout, sys.stderr
    sys.stdout = _Tee(streams[0], reporting("stdout"), echo)
    sys.stderr = _Tee(streams[1], reporting("stderr"), echo)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def serve(
    meeting: Meeting,
    rank: int,
    *,
    path: list[str] | None = None,
    echo: bool = True,
    at_beat: Callable[[], None] = lambda: None,
    devices: Sequence[str] | None = None,
) -> None:
    """Join the driver's gang as `rank` and run its calls until the driver says stop or disappears.

    Without `echo` the rank's output goes to the driver only, for runtimes whose workers share the user's terminal.
    `at_beat` is called with every heartbeat, and whenever the driver asks for an answer. `devices` are the ids of the
    GPUs that the rank may see; None for all.
    """
    if devices is not None:
        # A framework reads this once, when it looks for devices, so it has to be set before the first call.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    _extend_path(path or [])
    service = _Service(meeting, rank, at_beat, None if devices is None else tuple(devices))
    threads = service.context.place.threads
    alone = gc.get_freeze_count() == 0  # once: counting takes longer than a small call
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    threadpoolctl.threadpool_limits(threads)
    try:
        with _reported_output(service.context, echo):
            while (message := service.inbox.get())[0] != "stop":
                _, service.context.call_number, task, deliveries, driver_path = message
                _extend_path(driver_path)
                kind, content = _run(service.context, task, deliveries, alone)
                service.link.send_packed(pickle.dumps((kind, service.context.call_number, content), protocol=5))
    finally:
        service.close()
