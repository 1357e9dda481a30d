"""The local engine: shards in mapped files, shared by all processes of this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from orca.core.pickling import check_picklable
from orca.errors import NotPicklableError
from orca.shards import store
from orca.shards.engines.base import Engine, Join, Result, Shard, Split, Step
from orca.shards.packing import write_file
from orca.shards.tree import length_of

Work = Callable[[int], Shard]
"""Computes the new shard of an index."""


def _make_share(context: Any, work: Work, count: int, folder: str) -> list[tuple[int, str, int]]:
    """Compute, on a rank, every world-th new shard and write it to the driver's folder."""
    files = []
    for index in range(context.place.rank, count, context.place.world):
        result = work(index)
        path = store.new_path(folder)
        write_file(path, result)
        files.append((index, path, length_of(result)))
    return files


class LocalEngine(Engine):
    """The engine of the local runtime; work runs on the context's warm processes."""

    name = "local"

    def __init__(self, gang: Callable[[int], Any], cores: int) -> None:
        self._gang = gang
        self._cores = self.at_once = cores

    def put(self, shards: Sequence[Shard]) -> list[store.FileShard]:
        return [store.keep(shard) for shard in shards]

    def map(self, parts: list[store.FileShard], step: Step) -> list[store.FileShard]:
        return self._make(lambda index: step(index, parts[index].load()), len(parts), step)

    def zip(self, left: list[store.FileShard], right: list[store.FileShard]) -> list[store.FileShard]:
        return self._make(lambda index: (left[index].load(), right[index].load()), len(left))

    def shuffle(self, parts: list[store.FileShard], split: Split, join: Join, count: int) -> list[store.FileShard]:
        # The pieces of one shard are written to one file; reading piece j touches only the pages of that piece.
        pieces = self.map(parts, split)
        return self._make(lambda index: join(index, [piece.load()[index] for piece in pieces]), count, join)

    def gather(self, parts: list[store.FileShard]) -> list[Shard]:
        return [part.load() for part in parts]

    def take(self, parts: list[store.FileShard], count: int) -> list[Shard]:
        return [part.load() for part in parts[:count]]

    def inspect(self, parts: list[store.FileShard], fn: Callable[[Shard], Result]) -> Result:
        return fn(parts[0].load())

    def rows(self, parts: list[store.FileShard]) -> list[int]:
        return [part.rows for part in parts]

    def count(self, parts: list[store.FileShard]) -> int:
        return len(parts)

    def free(self, parts: list[store.FileShard]) -> None:
        for part in parts:
            part.free()

    def _make(self, work: Work, count: int, fn: object = None) -> list[store.FileShard]:
        """Compute new shards; `fn` is what users have a part in, for errors."""
        if count == 0:
            return []
        folder = tempfile.mkdtemp(dir=store.folder())
        try:
            shares = self._gang(min(self._cores, count)).call(_make_share, work, count, folder)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, NotPicklableError):
                check_picklable(fn=fn)
            raise
        files = sorted((entry for share in shares for entry in share), key=lambda entry: entry[0])
        return [store.FileShard(path, rows) for _, path, rows in files]
