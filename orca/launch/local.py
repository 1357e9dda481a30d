"""Ranks as processes of this machine, forked from a clean parent that has the framework imported."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orca.core.machine import usable_cpus
from orca.core.scratch import Scratch, scratch
from orca.launch.base import Hello, Launcher, Meeting
from orca.launch.gang import driver_path
from orca.launch.processes import explain_exit, kill, wait_until

_KILL_SECONDS = 5.0
_TAIL_LINES = 20


class Nursery:
    """The driver's side of one zygote process: it requests forks and kills and receives exit codes."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from orca.launch.zygote import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            cwd=str(Path(__file__).resolve().parents[2]),
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._forked: dict[str, int] = {}
        self._exited: dict[int, int] = {}
        self._order({"path": driver_path(), "preload": list(preload)})
        threading.Thread(target=self._listen, name="orca-nursery", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, order: dict[str, Any]) -> None:
        self._order({"fork": order})

    def pid(self, name: str) -> int | None:
        return self._forked.get(name)

    def exit_code(self, pid: int) -> int | None:
        return self._exited.get(pid)

    def kill(self, pid: int) -> None:
        self._order({"kill": pid})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def _order(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                raise RuntimeError("the process that starts local workers has died; call fit again") from error

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "forked" in answer:
                # Process ids are reused: a new process is not the one that ended under its id before.
                self._exited.pop(answer["forked"], None)
                self._forked[answer["name"]] = answer["forked"]
            elif "exited" in answer:
                self._exited[answer["exited"]] = answer["code"]
        self._process.stdout.close()


_nurseries: dict[tuple[str, ...], Nursery] = {}
# A forked child of the driver has copies of these, but they belong to the driver.
os.register_at_fork(after_in_child=_nurseries.clear)


def nursery(preload: tuple[str, ...]) -> Nursery:
    """Return the zygote that has these modules imported, starting it if needed."""
    existing = _nurseries.get(preload)
    if existing is None or not existing.alive:
        existing = _nurseries[preload] = Nursery(preload)
    return existing


def close_nurseries() -> None:
    """End all zygotes; called when the context stops. If the driver dies, they exit by themselves."""
    while _nurseries:
        _nurseries.popitem()[1].close()


class LocalLauncher(Launcher):
    """Starts ranks on this machine; one slot per core of the context."""

    runtime = "local"

    def __init__(self, cores: int | None = None, preload: tuple[str, ...] = ()) -> None:
        self._cores = cores or usable_cpus()
        self._preload = preload
        self._nursery: Nursery | None = None
        self._names: dict[int, str] = {}
        self._folder: Scratch | None = None

    def slots(self, wanted: int = 0) -> int:
        return self._cores

    def advice(self, world: int) -> str:
        return f"Use workers={self._cores}, or allow more processes than cores with init_orca_context(cores={world})."

    def start(self, world: int, meeting: Meeting) -> None:
        self._nursery = nursery(self._preload)
        self._folder = scratch("orca-gang-")
        environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS",)}
        for rank in range(world):
            # A nursery serves many gangs: a rank's name is unique to this one.
            name = f"{self._folder.path.name}/{rank}"
            self._names[rank] = name
            self._nursery.fork(
                {
                    "rank": rank,
                    "name": name,
                    "log": str(self._folder.path / f"rank-{rank}.log"),
                    "env": environment,
                    "cwd": os.getcwd(),
                    "host": meeting.host,
                    "port": meeting.port,
                    "key": meeting.key.hex(),
                }
            )

    def deaths(self) -> dict[int, str]:
        gone: dict[int, str] = {}
        if self._nursery is None:
            return gone
        for rank, name in self._names.items():
            pid = self._nursery.pid(name)
            code = self._nursery.exit_code(pid) if pid is not None else None
            if code is not None:
                gone[rank] = explain_exit(code)
            elif not self._nursery.alive:
                gone[rank] = "the process that starts local workers has died"
        return gone

    def tail(self, rank: int) -> list[str]:
        if self._folder is None:
            return []
        try:
            text = (self._folder.path / f"rank-{rank}.log").read_text(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-_TAIL_LINES:]

    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        house = self._nursery
        if house is not None and house.alive:

            def all_gone() -> bool:
                pids = [house.pid(name) for name in self._names.values()]
                return all(pid is not None and house.exit_code(pid) is not None for pid in pids)

            if not wait_until(all_gone, patience):
                for name in self._names.values():
                    pid = house.pid(name)
                    if pid is not None:
                        with contextlib.suppress(RuntimeError):
                            house.kill(pid)
                wait_until(all_gone, _KILL_SECONDS)
        for hello in hellos.values():
            # With the zygote dead nothing else ends a stopped rank.
            kill(hello)
        if self._folder is not None:
            self._folder.remove()
        self._names.clear()
        self._nursery = self._folder = None
