"""A small parent process that has the framework imported already and forks ranks from it in milliseconds.

It talks to the driver over its standard input and output, one JSON line each way, and exits when the driver's end
closes. It never starts a thread, so that forking is safe, and it alone waits for its children, so that a process id
that it is asked to kill can never belong to another process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

from orca.launch.rank_log import RankLog

_SWEEPS = 3
_SWEEP_SECONDS = 0.3


def main() -> None:
    """Run as the parent of ranks until the driver is gone."""
    commands, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    _Zygote(commands, answers).run()


class _Zygote:
    """Carries out the driver's commands and reports the ends of its children."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._parent = os.getppid()
        self._children: set[int] = set()
        self._pending = b""
        self._dismissed = False
        """Whether the driver has said that it needs us no more; else the end of our input means that it died."""
        setup = json.loads(self._first_line())
        sys.path[:] = setup["path"]
        for module in (*setup["preload"], "orca.launch.rank"):
            importlib.import_module(module)
        # Imported modules are never garbage: ranks need not scan them, nor copy their memory by doing so.
        gc.collect()
        gc.freeze()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        self._answer({"ready": os.getpid()})
        self._obey_all(b"")  # commands that arrived with the set-up
        while True:
            ready, _, _ = select.select([self._commands, self._wake_read], [], [], 1.0)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            # A child of the driver may keep our input open after the driver's death; then only the parent's id changes.
            orphaned = os.getppid() != self._parent
            if self._commands not in ready and not orphaned:
                continue
            received = b"" if orphaned else os.read(self._commands, 65536)
            if not received:
                self._end_children()
                if not self._dismissed:
                    _sweep()
                return
            self._obey_all(received)

    def _obey_all(self, received: bytes) -> None:
        *lines, self._pending = (self._pending + received).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _first_line(self) -> bytes:
        while b"\n" not in self._pending:
            received = os.read(self._commands, 65536)
            if not received:
                raise SystemExit(0)
            self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _answer(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        while line:
            line = line[os.write(self._answers, line) :]

    def _reap(self) -> None:
        while self._children:
            # One call for each child that has ended; asking for each one that lives would cost the square of them.
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._children.discard(pid)
            self._answer({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def _end_children(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        for child in self._children:
            os.waitpid(child, 0)

    def _obey(self, command: dict[str, Any]) -> None:
        if "kill" in command:
            if command["kill"] in self._children:
                os.kill(command["kill"], signal.SIGKILL)
            return
        if "end" in command:
            self._dismissed = True
            return
        name = command["fork"]["name"]
        try:
            pid = os.fork()
        except OSError as error:
            hint = "the limit on processes (ulimit -u) or the memory is exhausted"
            self._answer({"failed": name, "reason": f"{error.strerror}; {hint}"})
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._wake_read, self._wake_write, self._commands, self._answers):
                os.close(descriptor)
            _become_rank(command["fork"])
        self._children.add(pid)
        self._answer({"forked": pid, "name": name})


def _sweep() -> None:
    """Remove the temporary folders of a driver that was killed."""
    from orca.core.scratch import PREFIXES, sweep

    for _ in range(_SWEEPS):
        # The system frees the driver's locks one after the other.
        time.sleep(_SWEEP_SECONDS)
        for prefix in PREFIXES:
            sweep(prefix)


def _become_rank(order: dict[str, Any]) -> None:
    code = 1
    try:
        log = RankLog(order["log"])
        log.replace_output()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        from orca.launch.base import Meeting
        from orca.launch.rank import serve

        meeting = Meeting(order["host"], order["port"], bytes.fromhex(order["key"]))
        serve(meeting, order["rank"], at_beat=log.trim, devices=order["devices"])
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Interpreter shutdown of a forked process with native threads can hang; there is nothing left to do.
            os._exit(code)


if __name__ == "__main__":
    main()
