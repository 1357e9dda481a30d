"""Runs a reader on groups of files where the engine runs, at once, so that a bad file is told by the reading call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from orca import errors
from orca.core.session import active
from orca.errors import OrcaError, TransformError
from orca.shards.readers import schemas
from orca.shards.xshards import XShards

_TOLD = re.compile(r"(?:^|TransformError: )shard \d+: (\w+): (.*)")


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what the reader raised on its shard; the file's name says more than the shard's number."""
    try:
        yield
    except TransformError as error:
        # Ray's form of the error holds the whole traceback; the told line is in it.
        found = _TOLD.search(str(error))
        kind = getattr(errors, found.group(1), None) if found else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, OrcaError)) or kind is TransformError:
            raise
        raise kind(found.group(2).strip()) from error


def read(groups: Sequence[list[Any]], step: Callable[..., Any], *args: Any) -> XShards:
    """One shard per group of descriptors; kept, so that no row is read twice."""
    engine = active().engine
    return XShards(engine, engine.put(groups)).transform_shard(step, *args).cache()


def made_alike(shards: XShards, found: list[schemas.Schema], labels: Sequence[str], **words: str) -> XShards:
    """The same shards, all with the columns and dtypes that the schemas `found` have in common."""
    target = schemas.unify(found, labels, **words)
    if all(schemas.alike(schema, target) for schema in found):
        return shards
    return shards._map(lambda index, frame: schemas.cast(frame, target, labels[index])).cache()


def joined(frames: list[Any], labels: Sequence[str], **words: str) -> Any:
    """Frames of several files as one."""
    from orca.shards.tree import join_rows

    if len(frames) == 1:
        return frames[0]
    target = schemas.unify([schemas.kinds(frame) for frame in frames], labels, **words)
    return join_rows([schemas.cast(frame, target, label) for frame, label in zip(frames, labels, strict=True)])


def checked_options(given: dict[str, Any], function: Callable[..., Any], refused: Sequence[str]) -> None:
    """Refuse options that pandas' function does not know, and those that make no frame of it."""
    import inspect

    known = [name for name in inspect.signature(function).parameters if name not in refused]
    for name in given:
        if name not in known:
            raise errors.ArgumentError(
                f"{function.__name__} has no option {name}= here.{errors.suggest(name, known)} "
                f"It takes what pandas.{function.__name__} takes, except {', '.join(refused)}."
            )


def counted(shards: XShards, num_shards: int | None) -> XShards:
    """The shards, cut anew if there should be another number of them."""
    if num_shards is None or shards.num_partitions() == num_shards:
        return shards
    return shards.repartition(num_shards)
