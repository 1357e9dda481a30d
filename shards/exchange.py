"""Brings every shard of a source to every host of a gang: one copy per host, mapped by all its ranks.

Each rank starts with some packed shards of its own. It writes them to files, tells the others where they
are, fetches what lies on another host from the rank that has it, and maps all of them. The files are
unlinked as soon as every rank of the host has mapped them, so a rank that dies later leaves nothing behind.
"""

from __future__ import annotations

import multiprocessing.connection as mpc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow

from orca.core.machine import host_id
from orca.core.scratch import scratch
from orca.launch.base import Meeting
from orca.launch.channel import Listening, knock
from orca.launch.rank import RankContext
from orca.shards.feed import Given
from orca.shards.packing import read_file, write_pieces
from orca.shards.store import new_path

_CHUNK = 8 << 20


def spool_prefix(token: str) -> str:
    """The prefix of the temporary folders of one call."""
    return f"orca-spool-{token}-"


@dataclass(frozen=True)
class _Parcel:
    """Where one packed shard lies."""

    source: str
    index: int
    path: str
    host: str
    counter: Meeting


def spool(
    context: RankContext, records: Iterable[tuple[str, int, bytes | memoryview]], token: str, names: Sequence[str]
) -> dict[str, list[Given]]:
    """Exchange the ranks' packed shards; return, by source, all shards in order."""
    here = host_id()
    folder = scratch(spool_prefix(token), sweep="orca-spool-")
    try:
        own: list[tuple[str, int, str]] = []
        for name, index, blob in records:
            if name:
                path = new_path(str(folder.path))
                write_pieces(path, iter([blob]))
                own.append((name, index, path))
        blob = b""
        pyarrow.default_memory_pool().release_unused()
        counter = _Counter(context.place.address, [path for _, _, path in own])
        try:
            mine = [_Parcel(name, index, path, here, counter.meeting) for name, index, path in own]
            parcels = [parcel for share in context.allgather(mine) for parcel in share]
            fetched = _fetch_share(context, here, parcels, str(folder.path))
            at_home = {
                (parcel.source, parcel.index): parcel.path
                for share in context.allgather(fetched + mine)
                for parcel in share
                if parcel.host == here
            }
        finally:
            counter.close()
        found: dict[str, list[Given]] = {}
        for name in names:
            indices = sorted(index for source, index in at_home if source == name)
            found[name] = [Given(read_file(at_home[name, index])) for index in indices]
        context.allgather(None)
        return found
    finally:
        folder.remove()


def _fetch_share(context: RankContext, here: str, parcels: list[_Parcel], folder: str) -> list[_Parcel]:
    """Fetch this rank's part of what its host lacks; the ranks of one host divide the work."""
    place = context.place
    wanted = [parcel for parcel in parcels if parcel.host != here]
    fetched = []
    for parcel in wanted[place.local_rank :: place.local_world]:
        path = new_path(folder)
        peer, _ = knock(parcel.counter)
        with peer:
            peer.send(parcel.path)
            write_pieces(path, _until_empty(peer))
        fetched.append(_Parcel(parcel.source, parcel.index, path, here, parcel.counter))
    return fetched


def _until_empty(peer: Any) -> Iterator[bytes]:
    while chunk := peer.recv_bytes():
        yield chunk


class _Counter:
    """Hands out this rank's own files, and no others, to ranks that know the key."""

    def __init__(self, address: str, paths: list[str]) -> None:
        self._paths = set(paths)
        self._listening = Listening(address, self._serve)
        self.meeting = self._listening.meeting
        self.close = self._listening.close

    def _serve(self, peer: mpc.Connection) -> None:
        with peer:
            try:
                path = peer.recv()
                if path not in self._paths:
                    return
                with open(path, "rb") as file:
                    while chunk := file.read(_CHUNK):
                        peer.send_bytes(chunk)
                peer.send_bytes(b"")
            except (OSError, EOFError):
                return
