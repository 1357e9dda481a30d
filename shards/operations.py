"""Operations over all shards (sort, group, merge, sample, describe), written on an engine's map, shuffle and zip."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.core.arguments import check_choice, check_count, check_flag, check_number
from orca.errors import ArgumentError, DataError, UnknownArgumentError, suggest
from orca.shards import frames
from orca.shards.columns import Columns, assemble
from orca.shards.engines.base import Shard, Step
from orca.shards.frames import Frame, Names
from orca.shards.lazy_parts import LazyParts
from orca.shards.shard_formats import unique as unique_in_shard
from orca.shards.steps import checked, column_names
from orca.shards.tree import is_records, join_rows, length_of, pick_rows, row_count, take_rows

# Counting and pairing shards


def shard_count(requested: int | None, rows: int, cores: int) -> int:
    """Return the number of shards to split `rows` into: as requested, or one per core but none without rows."""
    if requested is None:
        return max(1, min(cores, rows))
    return count_within("num_shards", requested, rows)


def count_within(name: str, count: int, rows: int) -> int:
    """Return a number of shards that is not more than the rows."""
    count = check_count(name, count)
    if count > max(rows, 1):
        raise ArgumentError(f"{name}={count} is more than the {rows} rows. Use at most {max(rows, 1)}.")
    return count


def entry_count(shards: LazyParts) -> int:
    """Return the number of entries of shards that are lists or tuples."""
    count = shards.inspect(lambda shard: len(shard) if isinstance(shard, list | tuple) else -1)
    if count < 0:
        raise DataError("split works on shards that are lists or tuples.")
    return count


def pair(left: LazyParts, right: LazyParts) -> LazyParts:
    """Pair the shards of two lists of the same length as tuples."""
    if left.count != right.count:
        raise ArgumentError(f"zip: {left.count} shards cannot be paired with {right.count}. Repartition one of them.")
    return left.zip(right).apply(_same_rows)


def _same_rows(shards: tuple[Shard, Shard]) -> tuple[Shard, Shard]:
    """Return a pair of shards with equal numbers of rows; objects without rows pair with anything."""
    left, right = (_rows_of(shard) for shard in shards)
    if left is not None and right is not None and left != right:
        raise DataError(f"zip: a shard of {left} rows cannot be paired with one of {right}. Repartition both alike.")
    return shards


def _rows_of(shard: Shard) -> int | None:
    if is_records(shard):
        return len(shard)
    try:
        return row_count(shard)
    except DataError:
        return None


# Reordering rows


def repartition(shards: LazyParts, count: int) -> LazyParts:
    """Split the same rows, in the same order, into `count` shards of even size."""
    starts = [0, *itertools.accumulate(shards.rows())]
    cuts = [starts[-1] * index // count for index in range(count + 1)]

    def split(index: int, shard: Shard) -> list[Shard]:
        borders = [min(max(cut - starts[index], 0), starts[index + 1] - starts[index]) for cut in cuts]
        return [take_rows(shard, low, high) for low, high in itertools.pairwise(borders)]

    return shards.shuffle(split, _concat, count)


def partition_by(shards: LazyParts, columns: Names, count: int | None = None) -> LazyParts:
    """Bring rows with equal values in these columns into the same shard."""
    keys = frames.names(columns)
    buckets = count or shards.count

    def split(index: int, shard: Shard) -> list[Shard]:
        frame = checked(shard, keys, "partition_by")
        return frames.split_by(frame, frames.bucket(frame, keys, buckets), buckets)

    return shards.shuffle(split, _concat, buckets)


def sort_values(shards: LazyParts, columns: Names, ascending: bool | Sequence[bool]) -> LazyParts:
    """Sort all rows: sample the first column, cut its values into even ranges, sort each range."""
    keys = frames.names(columns)
    upward = _directions(ascending, keys)
    if shards.engine.recomputes:
        # The rows are used twice: for the sample and for the sort.
        shards.cache()
    samples = shards.apply(lambda frame: frames.sort_sample(checked(frame, keys, "sort_values"), keys[0])).gather()
    values = np.sort(np.concatenate(samples)) if samples else np.empty(0, object)
    positions = np.linspace(0, len(values), shards.count + 1).astype(int)[1:-1]
    borders = values[positions[positions < len(values)]] if len(values) else np.empty(0, object)

    def split(index: int, frame: Frame) -> list[Frame]:
        target = frames.sort_targets(frame, keys[0], borders, upward[0])
        return frames.split_by(frame, target, len(borders) + 1)

    def join(index: int, pieces: list[Frame]) -> Frame:
        return join_rows(pieces).sort_values(keys, ascending=upward, kind="stable", ignore_index=True)

    return shards.shuffle(split, join, len(borders) + 1)


def _directions(ascending: bool | Sequence[bool], keys: list[str]) -> list[bool]:
    """Return one direction for each column."""
    if not isinstance(ascending, list | tuple):
        return [check_flag("ascending", ascending)] * len(keys)
    if len(ascending) != len(keys):
        raise ArgumentError(f"ascending={ascending!r} has not one entry for each of {keys}.")
    return [check_flag("ascending", one) for one in ascending]


def group_by(shards: LazyParts, columns: Names | None, agg: Any, join: bool) -> LazyParts:
    """Group all rows by columns and aggregate each group; without columns all rows are one group, in one shard."""
    keys = frames.names(columns)
    if keys:
        return partition_by(shards, keys).apply(frames.aggregate, keys, agg, join)
    if isinstance(agg, dict) and not join:
        shards = select(shards, list(agg))
    whole = repartition(shards, 1).apply(frames.aggregate, keys, agg, join)
    return repartition(whole, shards.count) if join else whole


def merge(left: LazyParts, right: LazyParts, how: str, on: Names | None, options: dict[str, Any]) -> LazyParts:
    """Join two lists of frames: rows with equal keys meet in the same shard."""
    if isinstance(how, str) and how == "cross":
        raise ArgumentError('how="cross" would pair all rows with all rows; it is not supported on shards.')
    check_choice("how", how, ("inner", "left", "right", "outer"))
    accepted = [name for name in inspect.signature(frames.pandas().merge).parameters if name not in ("left", "right")]
    for name in options:
        if name not in accepted:
            raise UnknownArgumentError(f"merge() has no argument {name}=.{suggest(name, accepted)}")
    shared = frames.names(on)
    if not shared and "left_on" not in options:
        mine, theirs = left.inspect(column_names), right.inspect(column_names)
        shared = [name for name in mine if name in theirs]
        if not shared:
            raise DataError(f"merge: no column in common. Left: {mine}. Right: {theirs}. Give on=.")
    count = max(left.count, right.count)
    arguments = {**options, "how": how, **({"on": shared} if shared else {})}
    left_parts = partition_by(left, shared or frames.names(options.get("left_on")), count)
    right_parts = partition_by(right, shared or frames.names(options.get("right_on")), count)
    return left_parts.zip(right_parts).apply(lambda pair: frames.pandas().merge(*pair, **arguments))


def deduplicate(shards: LazyParts) -> LazyParts:
    """Keep the first of rows that are equal in all columns."""
    columns = shards.inspect(column_names)
    return partition_by(shards, columns).apply(lambda frame: frame.drop_duplicates(ignore_index=True))


def _concat(index: int, pieces: list[Shard]) -> Shard:
    return join_rows(pieces)


# Selecting rows and columns


def select(shards: LazyParts, columns: Names) -> LazyParts:
    """Keep only these columns."""
    selected = frames.names(columns)
    return shards.apply(lambda frame: checked(frame, selected, "select")[selected])


def sample(shards: LazyParts, frac: float, replace: bool, seed: int) -> LazyParts:
    """Draw a random part of every shard, from the seed and the shard's index."""
    frac = check_number("frac", frac, least=0, expected="a number from 0 to 1, or with replace=True above")
    replace, seed = check_flag("replace", replace), check_count("seed", seed, least=0)
    if frac > 1 and not replace:
        raise ArgumentError(f"frac={frac!r}: expected 0 to 1, or replace=True.")

    def pick(index: int, shard: Shard) -> Shard:
        rows = length_of(shard)
        rng = np.random.default_rng([seed, index])
        return pick_rows(shard, rng.choice(rows, round(frac * rows), replace=replace) if rows else np.arange(0))

    return shards.map(pick)


def random_split(shards: LazyParts, weights: Sequence[float], seed: int | None) -> list[LazyParts]:
    """Split every shard by these weights; a row goes to one part, drawn from the seed and the shard's index."""
    shares = _shares(weights)
    # All parts need the same draw.
    drawn = int(np.random.SeedSequence().generate_state(1)[0])
    entropy = drawn if seed is None else check_count("seed", seed, least=0)
    borders = np.cumsum([0.0, *shares])
    borders[-1] = 1.0

    def part(number: int) -> Step:
        def pick(index: int, shard: Shard) -> Shard:
            rows = length_of(shard)
            rng = np.random.default_rng([entropy, index])
            # A random order cut in proportion, at a random offset: exact in a large shard, fair in one of a few rows.
            draws = (rng.permutation(rows) + rng.random()) / max(rows, 1)
            chosen = np.flatnonzero((borders[number] <= draws) & (draws < borders[number + 1]))
            picked = pick_rows(shard, chosen)
            return picked.reset_index(drop=True) if frames.has_default_index(shard) else picked

        return pick

    if not shards.engine.recomputes:
        shards = LazyParts(shards.engine, shards.parts)
    return [shards.map(part(number)) for number in range(len(shares))]


def _shares(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum."""
    is_list = isinstance(weights, list | tuple | np.ndarray) and len(weights) > 0
    numbers = [
        float(weight)
        for weight in (weights if is_list else ())
        if isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
    ]
    if not is_list or len(numbers) < len(weights) or not all(0 <= one < np.inf for one in numbers) or not sum(numbers):
        raise ArgumentError(f"weights={weights!r}: expected a list of numbers such as [0.8, 0.2], none negative.")
    return [number / sum(numbers) for number in numbers]


def drop_missing(shards: LazyParts, columns: Names | None) -> LazyParts:
    """Drop rows with a missing value in these columns, or in any."""
    subset = frames.names(columns)
    return shards.apply(
        lambda frame: checked(frame, subset, "drop_missing_value").dropna(subset=subset or None, ignore_index=True)
    )


def head(shards: LazyParts, count: int) -> Shard:
    """Bring the first rows into this process, from no more shards than needed."""
    totals = itertools.accumulate(shards.rows())
    needed = next((index + 1 for index, rows in enumerate(totals) if rows >= count), shards.count)
    return take_rows(join_rows(shards.apply(take_rows, 0, count).take(needed)), 0, count)


# Small results over all rows


def unique(shards: LazyParts) -> np.ndarray[Any, Any]:
    """Return the distinct values of one-column shards, in order of appearance."""
    return unique_in_shard(np.concatenate(shards.apply(unique_in_shard).gather()))


def describe(shards: LazyParts, columns: Names | None) -> Frame:
    """Return count, mean, standard deviation, minimum and maximum of numeric columns."""
    selected = frames.names(columns)
    return frames.merge_moments(
        shards.apply(lambda frame: frames.moments(checked(frame, selected, "describe"), selected)).gather()
    )


def max_values(shards: LazyParts, columns: Names) -> Any:
    """Return the largest value of each column: one value for one name, else a dict."""
    selected = frames.names(columns)
    largest = shards.apply(lambda frame: checked(frame, selected, "max_values")[selected].max().to_frame().T).gather()
    best = frames.pandas().concat(largest).max()
    values = {name: best[name].item() if hasattr(best[name], "item") else best[name] for name in selected}
    return values[columns] if isinstance(columns, str) else values


def null_counts(shards: LazyParts, columns: Names | None) -> dict[str, int]:
    """Count the missing values of each column."""
    selected = frames.names(columns)
    counts = shards.apply(
        lambda frame: (checked(frame, selected, "get_null_sum")[selected] if selected else frame).isna().sum()
    ).gather()
    return {str(name): int(sum(part[name] for part in counts)) for name in counts[0].index}


# Features and labels


def assemble_lists(shards: LazyParts, feature_cols: Columns, label_cols: Columns) -> LazyParts:
    """Turn frames into ``{"x": [one array per column], "y": …}``."""

    def arrays(frame: Frame, columns: Columns, argument: str) -> Any:
        entry = assemble(frame, columns, argument, together=False)
        return list(entry) if isinstance(entry, tuple) else entry

    return shards.apply(
        lambda frame: {"x": arrays(frame, feature_cols, "featureCols"), "y": arrays(frame, label_cols, "labelCols")}
    )


def stack_lists(shards: LazyParts) -> LazyParts:
    """Turn lists of single-number columns in ``{"x": […], "y": […]}`` into matrices."""

    def stacked(entry: Any) -> Any:
        flat_columns = isinstance(entry, list | tuple) and all(np.ndim(array) == 1 for array in entry)
        return np.stack(entry, axis=1) if flat_columns else entry

    return shards.apply(lambda shard: {key: stacked(entry) for key, entry in shard.items()})
