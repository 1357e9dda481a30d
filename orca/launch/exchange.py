"""Brings the rows that ranks need to their hosts: one copy per host, mapped by all its ranks.

Each rank starts with some packed shards of its own. It writes them to files and announces them to the other ranks.
Then all know how many rows there are and which of them each host needs. The ranks of a host fetch what it lacks from
the ranks that have it, whole shards or parts of them, and map it. The files are unlinked as soon as every rank of the
host has mapped them, so a rank that dies later leaves nothing behind.
"""

from __future__ import annotations

import itertools
import multiprocessing.connection as mpc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow

from orca.core.machine import host_id
from orca.core.scratch import scratch, write_pieces
from orca.launch.base import Absent, Handle, Meeting, Needs
from orca.launch.channel import Listening, knock
from orca.launch.rank import RankContext


class ShardFiles(Protocol):
    """How to read files that hold one packed shard each."""

    def open(self, path: str) -> Handle:
        """Map a file."""

    def cut(self, path: str, start: int, stop: int) -> Iterable[bytes | memoryview]:
        """Return some rows of a file, packed as a shard of their own, in pieces."""


_CHUNK = 8 << 20
_numbers = itertools.count()


def spool_prefix(token: str) -> str:
    """The prefix of the temporary folders of one call."""
    return f"orca-spool-{token}-"


@dataclass(frozen=True)
class _Parcel:
    """Some rows of a source in a file."""

    source: str
    index: int
    """The place of the shard within the source."""
    start: int
    """The first of the rows, within the shard."""
    rows: int
    path: str
    host: str
    counter: Meeting


def spool(
    context: RankContext,
    records: Iterable[tuple[str, int, bytes | memoryview]],
    token: str,
    files: Mapping[str, ShardFiles],
    needs: Mapping[str, Needs],
) -> dict[str, list[Handle]]:
    """Exchange the ranks' packed shards; return, by source, handles of all rows in order, absent ones included."""
    here = host_id()
    folder = scratch(spool_prefix(token), sweep_prefix="orca-spool-")
    try:
        own: list[tuple[str, int, str]] = []
        for name, index, blob in records:
            if name:
                path = _new_path(str(folder.path))
                write_pieces(path, iter([blob]))
                own.append((name, index, path))
        blob = b""
        pyarrow.default_memory_pool().release_unused()
        counter = _Counter(context.place.address, {path: files[name] for name, _, path in own})
        try:
            mine = [
                _Parcel(name, index, 0, files[name].open(path).rows, path, here, counter.meeting)
                for name, index, path in own
            ]
            announced = context.allgather((here, mine))
            parcels = sorted((parcel for _, share in announced for parcel in share), key=lambda p: (p.source, p.index))
            ranks = [rank for rank, (host, _) in enumerate(announced) if host == here]
            wanted = {name: _wanted([p for p in parcels if p.source == name], needs.get(name), ranks) for name in files}
            lacking = [part for parts in wanted.values() for part in parts if part.host != here]
            # The ranks of one host divide the work.
            fetched = _fetch(lacking[ranks.index(context.place.rank) :: len(ranks)], here, str(folder.path))
            at_home = {
                (parcel.source, parcel.index, parcel.start): parcel
                for share in context.allgather(fetched)
                for parcel in share
                if parcel.host == here
            }
        finally:
            counter.close()
        shards = {
            name: _handles(open_files, [p for p in parcels if p.source == name], wanted[name], at_home, here)
            for name, open_files in files.items()
        }
        context.allgather(None)
        return shards
    finally:
        folder.remove()


def _new_path(folder: str) -> str:
    return os.path.join(folder, f"{os.getpid()}-{next(_numbers)}.shard")


def _wanted(parcels: Sequence[_Parcel], needs: Needs | None, ranks: Sequence[int]) -> list[_Parcel]:
    """Return the parts of a source's shards that some ranks need, in order and without overlaps."""
    count = sum(parcel.rows for parcel in parcels)
    ranges = [(0, count)] if needs is None else sorted(needs(count, rank) for rank in ranks)
    parts = []
    first = 0
    for parcel in parcels:
        done = first
        for start, stop in ranges:
            low, high = max(start, done), min(stop, first + parcel.rows)
            if low < high:
                parts.append(replace(parcel, start=low - first, rows=high - low))
                done = high
        first += parcel.rows
    return parts


def _fetch(parcels: Sequence[_Parcel], here: str, folder: str) -> list[_Parcel]:
    """Fetch parcels from the ranks that have them; return them as they are here."""
    fetched = []
    for parcel in parcels:
        path = _new_path(folder)
        peer, _ = knock(parcel.counter)
        with peer:
            peer.send((parcel.path, parcel.start, parcel.start + parcel.rows))
            write_pieces(path, _until_empty(peer))
        fetched.append(replace(parcel, path=path, host=here))
    return fetched


def _until_empty(peer: Any) -> Iterator[bytes]:
    while chunk := peer.recv_bytes():
        yield chunk


def _handles(
    files: ShardFiles,
    parcels: Sequence[_Parcel],
    wanted: Sequence[_Parcel],
    fetched: Mapping[tuple[str, int, int], _Parcel],
    here: str,
) -> list[Handle]:
    """Return handles of all rows of a source: files where this host has the rows, else only their number."""
    parts: dict[int, list[_Parcel]] = {}
    for part in wanted:
        parts.setdefault(part.index, []).append(part)
    handles: list[Handle] = []
    for parcel in parcels:
        if parcel.host == here and parcel.index in parts:
            handles.append(files.open(parcel.path))
            continue
        position = 0
        for part in parts.get(parcel.index, ()):
            if part.start > position:
                handles.append(Absent(part.start - position))
            handles.append(files.open(fetched[part.source, part.index, part.start].path))
            position = part.start + part.rows
        if position < parcel.rows:
            handles.append(Absent(parcel.rows - position))
        elif not parcel.rows and not position:
            handles.append(Absent(0))
    return handles


class _Counter:
    """Hands out rows of this rank's own files, and of no others, to ranks that know the key."""

    def __init__(self, address: str, files: Mapping[str, ShardFiles]) -> None:
        self._files = files
        self._listening = Listening(address, self._serve)
        self.meeting = self._listening.meeting
        self.close = self._listening.close

    def _serve(self, peer: mpc.Connection) -> None:
        with peer:
            try:
                path, start, stop = peer.recv()
                if path not in self._files:
                    return
                if (start, stop) == (0, self._files[path].open(path).rows):
                    pieces: Iterable[bytes | memoryview] = _chunks(path)
                else:
                    pieces = self._files[path].cut(path, start, stop)
                for piece in pieces:
                    for low in range(0, len(piece), _CHUNK):
                        peer.send_bytes(piece[low : low + _CHUNK])
                peer.send_bytes(b"")
            except (OSError, EOFError):
                return


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
