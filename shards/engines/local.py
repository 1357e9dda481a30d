"""Shards in mapped files of this machine, shared by all its processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orca.shards import store
from orca.shards.engines.base import Engine
from orca.shards.packing import write_file
from orca.shards.tree import row_count


def _map_share(context: Any, fn: Callable[[Any], Any], parts: list[store.FileShard], folder: str) -> Any:
    """Run on a rank: map every world-th shard into a new file of the driver's folder."""
    made: list[tuple[int, str, int]] = []
    for index in range(context.place.rank, len(parts), context.place.world):
        result = fn(parts[index].load())
        path = store.new_path(folder)
        write_file(path, result)
        made.append((index, path, row_count(result)))
    return made


class LocalEngine(Engine):
    """The engine of the local runtime; maps run on the context's warm processes."""

    name = "local"

    def __init__(self, gang: Callable[[int], Any], cores: int) -> None:
        self._gang = gang
        self._cores = cores

    def put(self, shards: Sequence[Any]) -> list[store.FileShard]:
        return [store.keep(shard) for shard in shards]

    def map(self, parts: list[store.FileShard], fn: Callable[[Any], Any]) -> list[store.FileShard]:
        if not parts:
            return []
        gang = self._gang(min(self._cores, len(parts)))
        shares = gang.call(_map_share, fn, parts, str(store.folder()))
        made = sorted((entry for share in shares for entry in share), key=lambda entry: entry[0])
        return [store.FileShard(path, rows) for _, path, rows in made]

    def gather(self, parts: list[store.FileShard]) -> list[Any]:
        return [part.load() for part in parts]

    def first(self, parts: list[store.FileShard]) -> Any:
        return parts[0].load()

    def inspect(self, parts: list[store.FileShard], fn: Callable[[Any], Any]) -> Any:
        return fn(parts[0].load())

    def rows(self, parts: list[store.FileShard]) -> list[int]:
        return [part.rows for part in parts]

    def count(self, parts: list[store.FileShard]) -> int:
        return len(parts)

    def free(self, parts: list[store.FileShard]) -> None:
        for part in parts:
            part.free()
