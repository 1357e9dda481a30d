"""A gang of ranks: what is refused, exit codes, unauthenticated peers, and the end of the driver."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from orca import WorkerError
from orca.context import Context
from orca.errors import NotPicklableError
from orca.launch.base import Hello
from orca.launch.channel import Door, connect


def test_what_cannot_be_pickled_is_refused_before_launch(local: Context):
    lock = threading.Lock()
    gang = local.gang(2)
    with pytest.raises(NotPicklableError, match=r"cannot be pickled.*creator function"):
        gang.call(lambda rank_context: lock)
    assert not gang.running


def exit_at_once(rank_context):
    os._exit(3)


def test_exit_code_is_reported(local: Context):
    with pytest.raises(WorkerError, match="died: exit code 3"):
        local.gang(2).call(exit_at_once)


def test_door_holds_its_loopback_port_and_refuses_unauthenticated_peers():
    admitted = []
    door = Door("127.0.0.1", lambda hello, connection: admitted.append(hello))
    try:
        with socket.socket() as thief, pytest.raises(OSError):
            thief.bind((door.meeting.host, door.meeting.port))
        for message in (b"", b"\x00\x00\x00\x05hello", pickle.dumps(os.getpid)):
            with socket.create_connection((door.meeting.host, door.meeting.port)) as peer:
                peer.sendall(message)
        wrong = type(door.meeting)(door.meeting.host, door.meeting.port, b"x" * 32)
        hello = Hello(0, "h", "h", "a", 1, 0.0, 1)
        with pytest.raises(Exception, match=r"digest|rejected"):
            connect(wrong, lambda address: hello)
        assert not admitted
        connection = connect(door.meeting, lambda address: hello)
        for _ in range(100):
            if admitted:
                break
            time.sleep(0.02)
        assert admitted == [hello]
        connection.close()
    finally:
        door.close()


SCRIPT = """
import os, signal, sys, time
from orca import init_orca_context
from orca.launch.base import LogLine
def work(rank_context):
    rank_context.emit(LogLine(rank_context.place.rank, str(os.getpid()), "stdout"))
    time.sleep(60)
context = init_orca_context(cores=2)
context.gang(2).call(work, on_event=lambda event: print(event.line, flush=True))
"""


def test_ranks_end_when_their_driver_is_killed(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(SCRIPT)
    driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    ranks = [psutil.Process(int(driver.stdout.readline())) for _ in range(2)]
    assert all(rank.is_running() for rank in ranks)
    driver.kill()
    driver.wait(10)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive
