"""Asynchronous requests: their results wait in files, so that every process of the server can return them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import orjson

from orca.serving.messages import HttpError

log = logging.getLogger("orca.serving")
PENDING, SUCCESS, FAILURE = "PENDING", "SUCCESS", "FAILURE"
_ID = re.compile("[0-9a-f]{32}")
_MOST = 1000
_KEPT_SECONDS = 600
_GRACE_SECONDS = 10


class Tasks:
    """The tasks of a server. A result is kept for ten minutes."""

    def __init__(self, folder: str | None, timeout: float) -> None:
        self._own = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="orca-tasks-") if folder is None else folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._timeout = timeout
        self._running: set[asyncio.Task[None]] = set()

    def start(self, model: str, work: Awaitable[Any]) -> str:
        """Run the work in the background and return the id of its task."""
        self._sweep()
        task = secrets.token_hex(16)
        self._write(task, {"model": model, "status": PENDING, "response": None, "started": time.time()})
        running = asyncio.ensure_future(self._run(task, model, work))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return task

    async def _run(self, task: str, model: str, work: Awaitable[Any]) -> None:
        status, response = SUCCESS, None
        try:
            response = await work
        except HttpError as error:
            status, response = FAILURE, {"message": error.text}
        except Exception:
            log.exception("Task %s failed", task)
            status, response = FAILURE, {"message": f"The model failed; the log of the server says why under {task}."}
        self._write(task, {"model": model, "status": status, "response": response, "started": time.time()})

    def read(self, task: str) -> dict[str, Any]:
        """Return the state of a task: model, status and response."""
        path = self._folder / f"{task}.json"
        try:
            if _ID.fullmatch(task) is None:
                raise FileNotFoundError
            state: dict[str, Any] = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            raise HttpError(404, f"There is no such task; results are kept for {_KEPT_SECONDS} s.") from None
        if state["status"] == PENDING and time.time() > state["started"] + self._timeout + _GRACE_SECONDS:
            state |= {"status": FAILURE, "response": {"message": "The process that computed the task ended."}}
        return state

    def _write(self, task: str, state: dict[str, Any]) -> None:
        path = self._folder / f"{task}.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(orjson.dumps(state, option=orjson.OPT_SERIALIZE_NUMPY))
        temporary.replace(path)

    def _sweep(self) -> None:
        """Remove old results; refuse a task if there are too many."""
        count = 0
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                if time.time() - entry.stat().st_mtime > _KEPT_SECONDS:
                    os.unlink(entry.path)
                else:
                    count += 1
        if count >= _MOST:
            raise HttpError(503, f"The server keeps {_MOST} tasks, its limit.", [(b"retry-after", b"10")])

    async def stop(self) -> None:
        """Wait for the running tasks, and remove the folder if it belongs to this process."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._timeout)
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)
