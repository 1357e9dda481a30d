"""Connections share one thread: sends never wait, frames arrive whole, and many ranks need no more threads."""

from __future__ import annotations

import multiprocessing.connection as mpc
import pickle
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orca.context import Context
from orca.launch.channel import GOODBYE, Link
from orca.launch.hub import Hub
from tests.programs import run

LIMIT = 20.0


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()
    assert not hub._thread.is_alive()


def linked(hub: Hub) -> tuple[Link, socket.socket, queue.SimpleQueue[Any]]:
    """Return an open link, its peer's socket and what the link receives."""
    ours, theirs = socket.socketpair()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    link = Link(mpc.Connection(ours.detach()), heard.put, hub)
    link.open()
    return link, theirs, heard


def test_a_peer_that_reads_nothing_delays_nobody_and_receives_all_later(hub: Hub):
    silent, their_end, _ = linked(hub)
    lively, other_end, heard = linked(hub)
    blobs = [bytes([number]) * size for number, size in enumerate((10, 30 << 20, 5, 100_000, 20 << 20))]
    began = time.monotonic()
    for blob in blobs:
        silent.send_packed(blob)
    assert time.monotonic() - began < 1
    # The other connection works meanwhile, in both directions.
    mpc.Connection(other_end.dup().detach()).send_bytes(pickle.dumps("hello"))
    assert heard.get(timeout=LIMIT) == "hello"
    lively.send("answer")
    with mpc.Connection(other_end.detach()) as peer:
        assert pickle.loads(peer.recv_bytes()) == "answer"
    with mpc.Connection(their_end.detach()) as peer:
        assert [peer.recv_bytes() == blob for blob in blobs] == [True] * len(blobs)
        silent.send_packed(b"last")
        silent.close()
        assert peer.recv_bytes() == b"last"  # closing sends what is queued first
        with pytest.raises(EOFError):
            peer.recv_bytes()
    lively.close()


def test_closing_waits_for_a_silent_peer_only_as_long_as_it_is_told_to(hub: Hub):
    link, their_end, _ = linked(hub)
    link.send_packed(b"x" * (30 << 20))
    began = time.monotonic()
    link.close(flush_seconds=0.3)
    assert 0.25 < time.monotonic() - began < 2
    link.send_packed(b"nobody waits for this")
    their_end.close()


def test_frames_arrive_whole_however_they_are_cut(hub: Hub):
    link, their_end, heard = linked(hub)
    messages = [None, "x" * 70_000, list(range(1000)), b""]
    stream = b"".join(struct.pack("!i", len(blob)) + blob for blob in map(pickle.dumps, messages))
    last = pickle.dumps("long form")
    stream += struct.pack("!iQ", -1, len(last)) + last
    for start in range(0, len(stream), 7_001):
        their_end.sendall(stream[start : start + 7_001])
        time.sleep(0.001)
    assert [heard.get(timeout=LIMIT) for _ in range(5)] == [*messages, "long form"]
    their_end.sendall(struct.pack("!i", -2))  # no such length
    assert heard.get(timeout=LIMIT) is GOODBYE
    assert their_end.recv(1) == b""
    link.close()


def places(rank_context: Any, turns: int) -> list[list[int]]:
    own = rank_context.place.rank
    return [rank_context.allgather(own * turn) for turn in range(turns)]


def test_more_ranks_need_no_more_threads_and_gather_in_order(local: Context):
    counts = []
    for ranks in (2, 6):
        gang = local.gang(ranks)
        results = gang.call(places, 20)
        counts.append(sum(thread.name.startswith("orca-hub") for thread in threading.enumerate()))
        assert results == [[[rank * turn for rank in range(ranks)] for turn in range(20)]] * ranks
    assert counts == [1, 2]  # one for each gang
    local.stop_gangs()
    assert not any(thread.name.startswith("orca-hub") for thread in threading.enumerate())


def test_a_large_gang_raises_the_limit_on_open_files():
    output = run(
        """
        import resource
        from orca.core.limits import allow_files
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
        for count in (50, 300, 5000):
            allow_files(count)
            print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        """
    )
    few, more, most = map(int, output.split())
    assert few == 256
    assert 400 <= more < 1000
    assert most == 1000  # the hard limit
