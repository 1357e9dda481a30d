"""A small parent process that has the framework imported already and forks ranks from it in milliseconds.

It talks to the driver over its standard input and output, one JSON line each way, and ends when the
driver's end closes. It never starts a thread, so that forking is safe, and it is the one that waits
for its children, so that a process id it is asked to kill can never have been given to a stranger.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from typing import Any


def main() -> None:
    commands = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    parent = os.getppid()
    setup = json.loads(commands.readline())
    sys.path[:] = setup["path"]
    for module in setup["preload"]:
        importlib.import_module(module)
    # What was imported is no garbage: ranks need not look through it, nor make copies of its memory by doing so.
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    pending = b""

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    answer({"ready": os.getpid()})
    while True:
        ready, _, _ = select.select([commands.fileno(), wake_read], [], [], 1.0)
        if wake_read in ready:
            os.read(wake_read, 4096)
            for child in list(children):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    children.discard(pid)
                    answer({"exited": pid, "code": os.waitstatus_to_exitcode(status)})
        # A child of the driver may hold our input open after the driver's death; then only the parent's id tells.
        orphaned = os.getppid() != parent
        if commands.fileno() not in ready and not orphaned:
            continue
        received = b"" if orphaned else os.read(commands.fileno(), 65536)
        if not received:
            for child in children:
                os.kill(child, signal.SIGKILL)
            for child in children:
                os.waitpid(child, 0)
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "kill" in command:
                if command["kill"] in children:
                    os.kill(command["kill"], signal.SIGKILL)
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (wake_read, wake_write, commands.fileno(), answers.fileno()):
                    os.close(descriptor)
                _become_rank(command["fork"])
            children.add(pid)
            answer({"forked": pid, "name": command["fork"]["name"]})


def _become_rank(order: dict[str, Any]) -> None:
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        from orca.launch.base import Meeting
        from orca.launch.rank import serve

        serve(Meeting(order["host"], order["port"], bytes.fromhex(order["key"])), order["rank"])
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
