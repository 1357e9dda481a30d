"""What all transformers share: their input and output columns, checks, and one pass of `fit` over the shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from orca.errors import ArgumentError, ColumnError, DataError, NotFittedError, OrcaError, suggest
from orca.shards import frames
from orca.shards.engines.base import Result, Shard
from orca.shards.frames import Names
from orca.shards.tree import as_arrays, kind_of, row_count
from orca.shards.xshards import XShards

Array = np.ndarray[Any, Any]


class Transformer(Protocol):
    """Anything with input and output columns."""

    inputCol: Names
    outputCol: Names | None


def column_pairs(transformer: Transformer) -> list[tuple[str, str]]:
    """Return the input and output name of each column."""
    inputs, outputs = frames.names(transformer.inputCol), frames.names(transformer.outputCol)
    if not inputs:
        raise ArgumentError(f"inputCol={transformer.inputCol!r} names no column.")
    if transformer.outputCol is None:
        outputs = inputs
    if len(inputs) != len(outputs):
        raise ArgumentError(
            f"inputCol={transformer.inputCol!r} and outputCol={transformer.outputCol!r} have different numbers of "
            "names. Give each input column one output column."
        )
    for argument, columns in (("inputCol", inputs), ("outputCol", outputs)):
        if len(set(columns)) < len(columns):
            raise ArgumentError(f"{argument}={columns!r} names a column twice. Name each once.")
    return list(zip(inputs, outputs, strict=True))


def check_shards(shards: object, method: str) -> XShards:
    """Return the shards if they are XShards, else raise."""
    if not isinstance(shards, XShards):
        raise ArgumentError(
            f"{method} takes XShards; received a {type(shards).__name__}. Create shards with XShards.partition."
        )
    return shards


def check_fitted(transformer: Transformer, attribute: str, method: str) -> None:
    """Raise if `fit` has not set this attribute yet."""
    if not hasattr(transformer, attribute):
        raise NotFittedError(f"This {type(transformer).__name__} is not fitted. Call fit before {method}.")


def column_of(shard: Shard, name: str, argument: str) -> Any:
    """Return one column of a frame, as a Series, or one entry of a dict, as an array."""
    kind = kind_of(shard)
    if kind != "frame" and not isinstance(shard, dict):
        raise DataError(f"Shards have to be DataFrames or dicts of arrays; this shard is a {type(shard).__name__}.")
    if name not in shard:
        existing = [str(key) for key in shard]
        raise ColumnError(
            f"{argument}={name!r} is not in the data. Columns: {', '.join(existing)}." + suggest(name, existing)
        )
    column = shard[name] if kind == "frame" else as_arrays(shard[name])
    if kind_of(column) not in ("series", "array") or not column.shape:
        raise DataError(f"Column {name!r} is a {type(column).__name__}; expected one array with a value per row.")
    return column


def with_columns(shard: Shard, columns: dict[str, Array]) -> Shard:
    """Return the shard with these columns added or replaced."""
    return shard.assign(**columns) if kind_of(shard) == "frame" else {**shard, **columns}


def measure_columns(
    shards: XShards, transformer: Transformer, measure: Callable[[Any, str], Result]
) -> dict[str, list[Result]]:
    """Return, by column, what ``measure(values, name)`` returns on each shard that has rows; one pass."""
    columns = [name for name, _ in column_pairs(transformer)]
    measured = check_shards(shards, "fit").transform_shard(_measure_shard, columns, measure).collect()
    for part in measured:
        if isinstance(part, OrcaError):
            raise part
    parts = [part for part in measured if part is not None]
    if not parts:
        raise DataError(f"The shards have no rows. A {type(transformer).__name__} cannot learn from them.")
    return {name: [part[name] for part in parts] for name in columns}


def _measure_shard(shard: Shard, names: list[str], measure: Callable[[Any, str], Any]) -> Any:
    # An error is returned as a result, because an error raised in a step would lose its class.
    try:
        columns = {name: column_of(shard, name, "inputCol") for name in names}
        if not row_count(columns):
            return None
        return {name: measure(values, name) for name, values in columns.items()}
    except OrcaError as error:
        return error
