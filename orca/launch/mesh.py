"""Sums and gathers arrays over the ranks of a gang: one authenticated connection between every two ranks.

A rank listens, on its own address, only while the others connect. Sums follow the order of the ranks, so they are the
same on every rank and in every run. Two ranks exchange whole arrays, and so do more if the arrays are small: one round.
Otherwise each rank sums an equal part and sends the sum to all: two rounds, and as many bytes as a ring.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing.connection as mpc
import os
import queue
import select
import socket
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orca.launch.channel import Listening, knock

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Array = NDArray[Any]

_SMALL = 512 << 10
"""Size in bytes up to which all ranks exchange whole arrays, however many ranks there are."""
_CONNECT_SECONDS = 120.0
_HEADER = struct.Struct("<IQ")
_ALIGNMENT = 64
"""TensorFlow uses an array in place if its first byte is at a multiple of this."""


def join(context: RankContext) -> Mesh:
    """Connect this rank with all others, once per gang."""
    return context.once("mesh", lambda: _join(context))


def _join(context: RankContext) -> Mesh:
    place = context.place
    arrivals: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()

    def admit(connection: mpc.Connection) -> None:
        try:
            rank = int.from_bytes(connection.recv_bytes(_HEADER.size), "little")
        except (OSError, EOFError):
            connection.close()
            return
        arrivals.put((rank, _socket(connection)))

    listening = Listening(place.address, admit)
    peers: dict[int, socket.socket] = {}
    try:
        for rank, meeting in enumerate(context.allgather(listening.meeting)[: place.rank]):
            connection, _ = knock(meeting)
            connection.send_bytes(place.rank.to_bytes(4, "little"))
            peers[rank] = _socket(connection)
        while len(peers) < place.world - 1:
            rank, peer = arrivals.get(timeout=_CONNECT_SECONDS)
            peers[rank] = peer
    except queue.Empty:
        missing = sorted(set(range(place.world)) - {place.rank, *peers})
        raise TimeoutError(
            f"Ranks {missing} did not connect to rank {place.rank} at {place.address} within {_CONNECT_SECONDS:g} s. "
            "Check that the hosts of all ranks can reach each other."
        ) from None
    finally:
        listening.close()
    mesh = Mesh(place.rank, peers)
    context.at_exit(mesh.close)
    return mesh


def _socket(connection: mpc.Connection) -> socket.socket:
    with connection:
        return socket.socket(fileno=os.dup(connection.fileno()))


class Mesh:
    """The connections of one rank to all others. All ranks make the same calls in the same order."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.world = len(peers) + 1
        self._peers = dict(sorted(peers.items()))

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def sum(self, flat: Array, site: str) -> Array:
        """Sum a vector over all ranks, in rank order; `site` names this point of the program."""
        flat = np.ascontiguousarray(flat)
        key = zlib.crc32(site.encode())
        if self.world > 2 and flat.nbytes > _SMALL:
            return self._sum_in_two_rounds(flat, key)
        parts = {peer: _empty(flat.size, flat.dtype) for peer in self._peers}
        self._exchange(dict.fromkeys(self._peers, flat), parts, key)
        return self._total(flat, parts)

    def gather(self, flat: Array, site: str) -> Array:
        """Concatenate vectors of equal length from all ranks, in rank order."""
        flat = np.ascontiguousarray(flat)
        everything = _empty(flat.size * self.world, flat.dtype)
        parts = everything.reshape(self.world, flat.size)
        parts[self.rank] = flat
        self._exchange(
            dict.fromkeys(self._peers, flat), {peer: parts[peer] for peer in self._peers}, zlib.crc32(site.encode())
        )
        return everything

    def _sum_in_two_rounds(self, flat: Array, key: int) -> Array:
        edges = [flat.size * number // self.world for number in range(self.world + 1)]
        spans = [slice(low, high) for low, high in itertools.pairwise(edges)]
        own = flat[spans[self.rank]]
        parts = {peer: _empty(own.size, flat.dtype) for peer in self._peers}
        self._exchange({peer: flat[spans[peer]] for peer in self._peers}, parts, key)
        result = _empty(flat.size, flat.dtype)
        result[spans[self.rank]] = own = self._total(own, parts)
        self._exchange(dict.fromkeys(self._peers, own), {peer: result[spans[peer]] for peer in self._peers}, key)
        return result

    def _total(self, own: Array, parts: Mapping[int, Array]) -> Array:
        """Sum the ranks' parts in rank order, into one of the received ones."""
        if not parts:
            return own.copy()
        ordered = [own if rank == self.rank else parts[rank] for rank in range(self.world)]
        total = ordered[1] if self.rank == 0 else ordered[0]
        np.add(ordered[0], ordered[1], out=total)
        return functools.reduce(lambda so_far, part: np.add(so_far, part, out=so_far), ordered[2:], total)

    def _exchange(self, outgoing: Mapping[int, Array], incoming: Mapping[int, Array], key: int) -> None:
        """Send an array to each peer while receiving one from each."""
        sends = _unfinished([_Outgoing(self._peers[peer], peer, array, key) for peer, array in outgoing.items()])
        receives: list[_Message] = [_Incoming(self._peers[peer], peer, array, key) for peer, array in incoming.items()]
        while sends:
            _wait(sends, receives)
            sends, receives = _unfinished(sends), _unfinished(receives)
        # With everything sent, nobody waits for this rank: it can wait for one peer after the other.
        for message in receives:
            while not message.move(0):
                pass


class _Message(ABC):
    """A header, with the key of the reduction and the number of bytes, and an array, on their way."""

    def __init__(self, peer: socket.socket, rank: int, array: Array, key: int) -> None:
        self.peer = peer
        self._rank = rank
        self._expected = _HEADER.pack(key, array.nbytes)
        self._header = bytearray(self._expected)
        self._views = [memoryview(self._header), array.view(np.uint8).data]

    def move(self, flags: int) -> bool:
        """Transfer what is possible; return whether everything has been transferred."""
        try:
            count = self._transfer(flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionError(f"connection closed by rank {self._rank}: {error}") from error
        if count == 0:
            raise ConnectionError(f"connection closed by rank {self._rank}")
        while self._views and count >= self._views[0].nbytes:
            count -= self._views.pop(0).nbytes
            self._check()
        if self._views and count:
            self._views[0] = self._views[0][count:]
        return not self._views

    @abstractmethod
    def _transfer(self, flags: int) -> int:
        """Transfer some bytes and return how many."""

    def _check(self) -> None:
        if self._header != self._expected:
            key, size = _HEADER.unpack(self._header)
            raise RuntimeError(
                f"Rank {self._rank} is at another reduction (key {key}, {size} bytes): the ranks' programs differ. "
                "All ranks must apply the same gradients in the same order."
            )


class _Outgoing(_Message):
    def _transfer(self, flags: int) -> int:
        return self.peer.sendmsg(self._views, (), flags)


class _Incoming(_Message):
    def _transfer(self, flags: int) -> int:
        return self.peer.recvmsg_into(self._views, 0, flags)[0]


def _unfinished(messages: Sequence[_Message]) -> list[_Message]:
    """Transfer what is possible without waiting; return the messages that are not complete yet."""
    return [message for message in messages if not message.move(socket.MSG_DONTWAIT)]


def _wait(sends: Sequence[_Message], receives: Sequence[_Message]) -> None:
    """Wait until one of the messages can move."""
    events: dict[socket.socket, int] = {}
    for messages, event in ((sends, select.POLLOUT), (receives, select.POLLIN)):
        for message in messages:
            events[message.peer] = events.get(message.peer, 0) | event
    poll = select.poll()
    for peer, wanted in events.items():
        poll.register(peer, wanted)
    poll.poll()


def _empty(size: int, dtype: np.dtype[Any]) -> Array:
    """Create an array that TensorFlow can use without copying it."""
    raw = np.empty(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -int(raw.__array_interface__["data"][0]) % _ALIGNMENT
    return raw[start : start + size * dtype.itemsize].view(dtype)
