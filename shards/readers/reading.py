"""Runs a reader on groups of files on the engine, eagerly, so that the reading call itself reports a bad file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from orca import errors
from orca.core.session import active
from orca.errors import OrcaError, TransformError
from orca.shards.engines.base import Shard
from orca.shards.frames import Frame
from orca.shards.operations import count_within
from orca.shards.readers import schemas
from orca.shards.xshards import XShards

_MESSAGE = re.compile(r"(?:^|TransformError: )shard \d+: (\w+): (.*)")


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what the reader raised on its shard; the name of the file says more than the index of the shard."""
    try:
        yield
    except TransformError as error:
        # Ray's error holds the whole traceback, with the message somewhere in it.
        match = _MESSAGE.search(str(error))
        kind = getattr(errors, match.group(1), None) if match else None
        if match is None or not (isinstance(kind, type) and issubclass(kind, OrcaError)) or kind is TransformError:
            raise
        raise kind(match.group(2).strip()) from error


def read(groups: Sequence[list[Any]], step: Callable[..., Shard], *args: Any) -> XShards:
    """Read one shard per group of descriptors; the shards are cached, so that no row is read twice."""
    engine = active().engine
    return XShards(engine, engine.put(groups)).transform_shard(step, *args).cache()


def unify_dtypes(shards: XShards, shard_schemas: list[schemas.Schema], labels: Sequence[str], **words: str) -> XShards:
    """Cast the shards to the columns and dtypes that hold the values of all of them."""
    target = schemas.unify(shard_schemas, labels, **words)
    if all(schemas.alike(schema, target) for schema in shard_schemas):
        return shards
    return shards.transform_with_index(lambda index, frame: schemas.cast(frame, target, labels[index])).cache()


def join_frames(frames: list[Frame], labels: Sequence[str], **words: str) -> Frame:
    """Concatenate the frames of several files, with the same columns and dtypes."""
    from orca.shards.tree import join_rows

    if len(frames) == 1:
        return frames[0]
    target = schemas.unify([schemas.kinds(frame) for frame in frames], labels, **words)
    return join_rows([schemas.cast(frame, target, label) for frame, label in zip(frames, labels, strict=True)])


def check_options(options: dict[str, Any], function: Callable[..., Any], refused: Sequence[str]) -> None:
    """Raise for options that pandas' function does not have, and for those that do not result in a DataFrame."""
    import inspect

    accepted = [name for name in inspect.signature(function).parameters if name not in refused]
    for name in options:
        if name not in accepted:
            raise errors.UnknownArgumentError(
                f"{function.__name__} has no option {name}= here.{errors.suggest(name, accepted)} "
                f"It takes what pandas.{function.__name__} takes, except {', '.join(refused)}."
            )


def with_shard_count(shards: XShards, num_shards: int | None) -> XShards:
    """Repartition the shards if another number of them was requested."""
    if num_shards is None or shards.num_partitions() == num_shards:
        return shards
    return shards.repartition(count_within("num_shards", num_shards, len(shards)))
