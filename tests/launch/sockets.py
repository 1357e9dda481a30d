"""Lists the listening sockets of a job while it trains and while it is idle, and tries to get in like a stranger."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from orca.callbacks import Callback

if TYPE_CHECKING:
    from orca.testing import BackendCase

LOOPBACK = frozenset({"127.0.0.1", "::1"})
CLUSTERS = ("java", "spark daemon", "ray", "gcs_server")
"""How the names of processes of Spark and Ray begin, whose sockets are their own."""
LIMIT = 60.0
CHALLENGE = b"#CHALLENGE#"
"""What Orca's own sockets send first: whoever cannot answer it with the key is sent away."""


@dataclass(frozen=True, order=True)
class Listener:
    """A socket that accepts connections."""

    process: str
    pid: int
    address: str
    port: int

    @property
    def target(self) -> tuple[str, int]:
        """Where a process of this machine reaches it."""
        return "127.0.0.1" if self.address in ("::", "0.0.0.0") else self.address, self.port


def listeners() -> set[Listener]:
    """Return the listening sockets of this process and all its descendants."""
    me = psutil.Process()
    found = set()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            name = "driver" if process == me else _name(process)
            found |= {
                Listener(name, process.pid, entry.laddr.ip, entry.laddr.port)
                for entry in process.net_connections("tcp")
                if entry.status == psutil.CONN_LISTEN
            }
    return found


def _name(process: psutil.Process) -> str:
    if "java" in process.name():
        return "java"
    command = " ".join(process.cmdline())
    if "pyspark.daemon" in command or "spark_daemon" in command:
        parent = process.parent()
        return "spark daemon" if parent is not None and "java" in parent.name() else "rank"
    return "rank" if "zygote" in command or "ray::_RankActor" in command else process.name()


class Pause(Callback):
    """Halts every rank after its first step until the test has looked around."""

    acts_on_batches = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_batch(self, run) -> None:
        if run.batch == 1:
            (self.folder / f"paused-{run.rank}").touch()
            wait_for(lambda: (self.folder / "go").exists())


def wait_for(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)
    return happened()


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def intrude(listener: Listener, executed: Path) -> bool:
    """Send everything a stranger could try; return whether the socket asks for a key."""
    blob = pickle.dumps(Touch(executed))
    framed = struct.pack("!i", len(blob)) + blob
    garbage = np.random.default_rng(0).bytes(1 << 16)
    request = b"PUT /global/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n0"
    wrong = b"{sha256}" + bytes(32)
    for attempt in (b"", garbage, request, blob, framed, struct.pack("!i", len(wrong)) + wrong + framed):
        with suppress(OSError), socket.create_connection(listener.target, timeout=2) as stranger:
            stranger.sendall(attempt)
            stranger.settimeout(0.1)
            stranger.recv(1 << 12)
    try:
        with socket.create_connection(listener.target, timeout=2) as stranger:
            stranger.settimeout(1)
            return CHALLENGE in stranger.recv(1 << 10)
    except OSError:
        return False


SESSION = """
import sys
from concurrent.futures import ThreadPoolExecutor
import tensorflow as tf


def attempt(target):
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=2000)
    try:
        with tf.Graph().as_default():
            operation = tf.io.write_file(sys.argv[1], "executed")
            with tf.compat.v1.Session(f"grpc://{target}", config=config) as session:
                session.run(operation)
    except tf.errors.OpError as error:
        return type(error).__name__
    return "executed"


with ThreadPoolExecutor() as pool:
    print("attempts:", *pool.map(attempt, sys.argv[2:]))
"""


def run_tensorflow_operations(found: set[Listener], executed: Path) -> None:
    """Try to have each socket run an operation that creates a file, as a TensorFlow server would."""
    targets = ["{}:{}".format(*listener.target) for listener in sorted(found)]
    command = [sys.executable, "-c", SESSION, str(executed), *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * LIMIT)
    assert "attempts:" in done.stdout, done.stderr[-2000:]


@dataclass
class Watch:
    """What was found in one test, as a table."""

    backend: str
    folder: Path
    tensorflow: bool = False
    before: set[Listener] = field(default_factory=listeners)
    """Sockets that existed before the test, such as those of Ray."""
    rows: set[tuple[str, Listener, bool | None]] = field(default_factory=set)

    @property
    def executed(self) -> Path:
        return self.folder / "executed"

    @property
    def addresses(self) -> set[str]:
        return {listener.address for _, listener, _ in self.rows}

    def look(self) -> set[Listener]:
        return {one for one in listeners() - self.before if not one.process.startswith(CLUSTERS)}

    def look_and_intrude(self, moment: str) -> None:
        found = self.look()
        with ThreadPoolExecutor() as pool:
            asks = list(pool.map(lambda listener: intrude(listener, self.executed), found))
        self.rows |= {(moment, listener, ask) for listener, ask in zip(found, asks, strict=True)}
        if self.tensorflow and found:
            run_tensorflow_operations(found, self.executed)

    @contextmanager
    def during_fit(self, ranks: int) -> Iterator[Pause]:
        """Look at the sockets from the start of a fit on, and intrude when all ranks have done a step."""

        def spy() -> None:
            seen: set[Listener] = set()
            try:

                def all_paused() -> bool:
                    seen.update(self.look())
                    return len(list(self.folder.glob("paused-*"))) == ranks

                assert wait_for(all_paused), "the ranks did not reach the callback"
                self.rows |= {("start", listener, None) for listener in seen - self.look()}
                self.look_and_intrude("fit")
            finally:
                (self.folder / "go").touch()

        with ThreadPoolExecutor(1) as pool:
            spying = pool.submit(spy)
            yield Pause(self.folder)
            spying.result(2 * LIMIT)

    def __str__(self) -> str:
        names = {True: "yes", False: "no", None: "closed before it was asked"}
        lines = [
            f"| {self.backend} | {moment} | {listener.process} | {listener.address} | {listener.port} | {names[asks]} |"
            for moment, listener, asks in sorted(self.rows, key=lambda row: (row[0], row[1]))
        ]
        return "\n".join(["| backend | moment | process | address | port | authenticates |", *lines])


def train_among_strangers(case: BackendCase, watch: Watch, **more: Any) -> None:
    """Fit twice, with strangers during the first fit and between the two; the result is that of undisturbed fits."""
    x, y = case.data(48)
    fits = {"epochs": 1, "batch_size": 16}
    disturbed = case.make(2, seed=3, **more)
    with watch.during_fit(2 if case.processes else 1) as pause:
        disturbed.fit(x, y, callbacks=[pause], **fits)
    watch.look_and_intrude("idle")
    history = disturbed.fit(x, y, **fits)
    calm = case.make(2, seed=3, **more)
    for _ in range(2):
        calm.fit(x, y, **fits)
    print(f"\n{watch}")
    assert not watch.executed.exists(), "a stranger's code ran"
    assert history["rows"] == [48]
    if case.lockstep:
        weights = case.learned(disturbed)
        for name, expected in case.learned(calm).items():
            np.testing.assert_array_equal(weights[name], expected, err_msg=name)
