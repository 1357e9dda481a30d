"""Ranks as processes of this machine, forked from a clean parent that has the framework imported."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from orca.core.machine import search_path, usable_cpus, visible_gpus, working_folder
from orca.core.scratch import Scratch, clean_up_when_terminated, scratch
from orca.launch.base import Hello, Launcher, Meeting
from orca.launch.processes import explain_exit, kill, lives, wait_until
from orca.launch.resources import written

_log = logging.getLogger("orca")
_KILL_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_TAIL_LINES = 20


class Nursery:
    """The driver's side of one zygote process: it requests forks and kills and receives exit codes."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from orca.launch.zygote import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if _is_open(2) else subprocess.DEVNULL,
            start_new_session=True,
            env=dict(os.environ, PYTHONUNBUFFERED="1"),
            cwd=str(Path(__file__).resolve().parents[2]),
        )
        self._lock = threading.Lock()
        self._forked: dict[str, int] = {}
        self._exited: dict[int, int] = {}
        self._failed: dict[str, str] = {}
        self._ready = False
        self._ordered: dict[str, float] = {}
        """When each fork was ordered that has not been answered."""
        self._order({"path": search_path(), "preload": list(preload)})
        threading.Thread(target=self._listen, name="orca-nursery", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def stuck(self) -> bool:
        """Whether the process lives but will not answer: it is stopped, or has owed an answer for long."""
        try:
            process = psutil.Process(self._process.pid)
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return True
        except (psutil.Error, OSError):  # the latter if this process may open no more files
            return False
        # While it imports modules it may take its time; a fork takes milliseconds.
        oldest = min(self._ordered.values(), default=math.inf)
        return self._ready and time.monotonic() - oldest > _ANSWER_SECONDS

    def fork(self, order: dict[str, Any]) -> None:
        self._ordered[order["name"]] = time.monotonic()
        self._order({"fork": order})

    def pid(self, name: str) -> int | None:
        return self._forked.get(name)

    def exit_code(self, pid: int) -> int | None:
        return self._exited.get(pid)

    def failure(self, name: str) -> str | None:
        """Why the fork of this name failed."""
        return self._failed.get(name)

    def kill(self, pid: int) -> None:
        self._order({"kill": pid})

    def close(self) -> None:
        """End the zygote and its children."""
        if not self.stuck:
            with contextlib.suppress(OSError, RuntimeError):
                assert self._process.stdin is not None
                self._order({"end": True})
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
                return
        self.abandon()

    def abandon(self) -> None:
        """Kill the zygote; its children live on until the driver closes their links."""
        self._process.kill()
        self._process.wait(5)

    def _order(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise RuntimeError("the process that starts local workers has died; call fit again") from error

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "forked" in answer:
                # Process ids are reused: a new process is not the one that ended under its id before.
                self._exited.pop(answer["forked"], None)
                self._forked[answer["name"]] = answer["forked"]
                self._ordered.pop(answer["name"], None)
            elif "exited" in answer:
                self._exited[answer["exited"]] = answer["code"]
            elif "failed" in answer:
                self._failed[answer["failed"]] = answer["reason"]
                self._ordered.pop(answer["failed"], None)
            elif "ready" in answer:
                now = time.monotonic()
                self._ordered.update(dict.fromkeys(self._ordered, now))
                self._ready = True
        self._process.stdout.close()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class Nurseries:
    """The zygotes of one context, by the modules that they have imported."""

    def __init__(self) -> None:
        self._nurseries: dict[tuple[str, ...], Nursery] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, preload: tuple[str, ...]) -> Nursery:
        """Return the zygote that has these modules imported, starting it if needed."""
        if self._pid != os.getpid():
            # A forked child of the driver has copies of these, but they belong to the driver.
            self._nurseries, self._lock, self._pid = {}, threading.Lock(), os.getpid()
        with self._lock:
            existing = self._nurseries.get(preload)
            if existing is not None and existing.alive and existing.stuck:
                existing.abandon()
            if existing is None or not existing.alive:
                existing = self._nurseries[preload] = Nursery(preload)
            return existing

    def close(self) -> None:
        """End all zygotes. If the driver dies, they exit by themselves."""
        if self._pid != os.getpid():
            return
        with self._lock:
            while self._nurseries:
                self._nurseries.popitem()[1].close()


class LocalLauncher(Launcher):
    """Starts ranks on this machine; a slot is a core of the context, or what a worker needs instead."""

    runtime = "local"
    reserves = True
    regain_seconds = 0.0

    def __init__(
        self, cores: int | None = None, preload: tuple[str, ...] = (), nurseries: Nurseries | None = None
    ) -> None:
        self._cores = cores or usable_cpus()
        self._preload = preload
        self._nurseries = nurseries or Nurseries()
        self._nursery: Nursery | None = None
        self._orders: dict[int, dict[str, Any]] = {}
        self._folder: Scratch | None = None

    def slots(self, wanted: int = 0) -> int:
        return self.resources.fits(self._available())

    def _available(self) -> dict[str, float]:
        return {"CPU": self._cores, "GPU": len(visible_gpus())}

    def inventory(self) -> str:
        return f": this machine has {written(self._available())}"

    def advice(self, world: int) -> str:
        if self.resources.others:
            return f"Name only CPU and GPU here: {self.resources.others[0][0]!r} needs a cluster."
        if self.resources.gpus:
            return (
                "Use fewer workers, or fewer GPUs for each; CUDA_VISIBLE_DEVICES, where it is set, has to list those "
                "that may be used."
            )
        if self.resources.named:
            cores = world * (self.resources.cpus or 1)
            return f"Use fewer workers, or allow more threads than cores with init_orca_context(cores={cores})."
        return f"Use workers={self._cores}, or allow more processes than cores with init_orca_context(cores={world})."

    def start(self, world: int, meeting: Meeting) -> None:
        self._folder = scratch("orca-gang-")
        clean_up_when_terminated()
        environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS",)}
        gpus = self.resources.gpus
        ids = visible_gpus()[: (gpus or 0) * (world - self.servers)]  # servers see none
        for rank in range(world):
            self._orders[rank] = {
                "rank": rank,
                # A nursery serves many gangs: a rank's name is unique to this one.
                "name": f"{self._folder.path.name}/{rank}",
                "log": str(self._folder.path / f"rank-{rank}.log"),
                "env": environment,
                "devices": None if gpus is None else ids[gpus * rank : gpus * (rank + 1)],
                "cwd": working_folder(),
                "host": meeting.host,
                "port": meeting.port,
                "key": meeting.key.hex(),
            }
        self._fork()

    def _fork(self) -> None:
        self._nursery = self._nurseries.get(self._preload)
        for order in self._orders.values():
            self._nursery.fork(order)

    def deaths(self) -> dict[int, str]:
        house = self._nursery
        if house is None:
            return {}
        names = {rank: order["name"] for rank, order in self._orders.items()}
        if house.alive and house.stuck and not any(map(house.pid, names.values())):
            _log.warning("The process that starts local workers does not answer. Starting another one.")
            house.abandon()
            self._fork()
            return {}
        gone: dict[int, str] = {}
        for rank, name in names.items():
            pid = house.pid(name)
            code = house.exit_code(pid) if pid is not None else None
            if code is not None:
                gone[rank] = explain_exit(code)
            elif (reason := house.failure(name)) is not None:
                gone[rank] = f"its process could not be created: {reason}"
            elif not house.alive:
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
        if house is not None and house.alive and house.stuck:
            house.abandon()
        if house is not None and house.alive:
            self._end_children(house, patience)
        else:
            # With the zygote dead nothing else ends a stopped rank.
            wait_until(lambda: not any(map(lives, hellos.values())), patience)
        for hello in hellos.values():
            kill(hello)
        if self._folder is not None:
            self._folder.remove()
        self._orders.clear()
        self._nursery = self._folder = None

    def _end_children(self, house: Nursery, patience: float) -> None:
        """Wait for the ranks to exit, then have the zygote kill them."""
        names = [order["name"] for order in self._orders.values()]

        def all_gone() -> bool:
            pids = [house.pid(name) for name in names if house.failure(name) is None]
            return all(pid is not None and house.exit_code(pid) is not None for pid in pids)

        if wait_until(all_gone, patience):
            return
        for pid in map(house.pid, names):
            if pid is not None:
                with contextlib.suppress(RuntimeError):
                    house.kill(pid)
        wait_until(lambda: all_gone() or not house.alive, _KILL_SECONDS)
