"""A gang of ranks on every runtime: calls, events, slots, failures and unauthenticated peers."""

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
from orca.errors import NotPicklableError, ResourceError
from orca.launch.base import Hello, LogLine
from orca.launch.channel import Door, connect
from tests.conftest import SLOTS


def report(rank_context, word):
    print(f"{word} from rank {rank_context.place.rank}")
    place = rank_context.place
    return rank_context.allgather((place.rank, os.getpid())), place.world, place.threads


def test_call_runs_on_every_rank_and_streams_its_events(context: Context):
    events = []
    results = context.gang(3).call(report, "hello", on_event=events.append)
    gathered = [result[0] for result in results]
    assert gathered[0] == gathered[1] == gathered[2]
    assert [rank for rank, _ in gathered[0]] == [0, 1, 2]
    assert len({pid for _, pid in gathered[0]}) == 3
    assert all(world == 3 and threads >= 1 for _, world, threads in results)
    lines = {(event.rank, event.line) for event in events if isinstance(event, LogLine)}
    assert lines >= {(rank, f"hello from rank {rank}") for rank in range(3)}


def count_calls(rank_context):
    memory = rank_context.memory
    memory["calls"] = memory.get("calls", 0) + 1
    return memory["calls"], os.getpid()


def test_gang_stays_warm_where_the_runtime_can(context: Context):
    gang = context.gang(2)
    first, second = gang.call(count_calls), gang.call(count_calls)
    assert context.gang(2) is gang
    assert gang.launcher.warm == (context.runtime != "spark")
    if gang.launcher.warm:
        assert second == [(calls + 1, pid) for calls, pid in first]
    else:
        # Spark may run new ranks in the same Python processes, so the process ids say nothing.
        assert [calls for calls, _ in first + second] == [1] * 4
    assert gang.running == gang.launcher.warm


def test_more_workers_than_slots_is_reported_at_once(context: Context):
    began = time.monotonic()
    with pytest.raises(ResourceError, match=rf"workers=50 does not fit: the \w+ .* {SLOTS} slots.*workers={SLOTS}"):
        context.gang(50)
    assert time.monotonic() - began < 2


def unpicklable(rank_context):
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(one)
            self.lock = two

    raise Odd("cannot be rebuilt", threading.Lock())


def test_exception_that_cannot_be_pickled_still_arrives_as_text(context: Context):
    with pytest.raises(WorkerError, match="raised Odd: cannot be rebuilt") as caught:
        context.gang(2).call(unpicklable)
    assert "unpicklable" in caught.value.remote_traceback
    assert pickle.loads(pickle.dumps(caught.value)).rank == caught.value.rank


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
