"""XShards: a list of partitions on an engine, lazily transformed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from orca.core.session import active
from orca.errors import ArgumentError, DataError
from orca.shards import frames, pickle_folder
from orca.shards.columns import Columns, assemble, features_and_labels
from orca.shards.engines.base import Engine, Step
from orca.shards.shard_formats import schema, to_arrow, to_pandas, unique
from orca.shards.steps import Chain, Guarded, Item, StartingAt, UserStep, checked, column_names
from orca.shards.transform_errors import one_error
from orca.shards.tree import (
    as_arrays,
    cut_evenly,
    describe,
    join_rows,
    kind_of,
    pick_rows,
    row_count,
    take_rows,
)


class XShards:
    """Rows cut into shards that lie on this machine, in Ray's object store or in Spark.

    >>> import numpy as np
    >>> shards = XShards.partition({"x": np.arange(6.0), "y": np.arange(6)}, num_shards=2)
    >>> len(shards), shards.num_partitions()
    (6, 2)
    >>> shards.transform_shard(lambda shard: {"x": shard["x"] * 2, "y": shard["y"]}).to_numpy()["x"]
    array([ 0.,  2.,  4.,  6.,  8., 10.])
    """

    def __init__(self, engine: Engine, parts: Any, pending: tuple[Step, ...] = ()) -> None:
        self._engine = engine
        self._parts = parts
        self._pending = pending
        self._cached = False
        self._rows: list[int] | None = None

    # Making

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> XShards:
        """Cut arrays (also nested in dicts, lists and tuples), a DataFrame or an Arrow table into even shards."""
        context = active()
        data = as_arrays(data)
        rows = row_count(data)
        if num_shards is not None and num_shards < 1:
            raise ArgumentError(f"num_shards={num_shards!r}: expected at least 1.")
        if num_shards is not None and num_shards > max(rows, 1):
            raise ArgumentError(f"num_shards={num_shards} is more than the {rows} rows. Use at most {max(rows, 1)}.")
        count = num_shards or max(1, min(context.cores, rows))
        return XShards(context.engine, context.engine.put(cut_evenly(data, count)))

    @staticmethod
    def from_shards(shards: Sequence[Any]) -> XShards:
        """Take ready-made shards, of any sizes, in this order. All must have the same structure and dtypes."""
        ready = [as_arrays(shard) for shard in shards]
        if not ready:
            raise ArgumentError("from_shards was given no shard. Give a list with at least one.")
        expected = describe(ready[0])
        for index, shard in enumerate(ready):
            row_count(shard)
            if describe(shard) != expected:
                raise DataError(f"Shard {index} has {describe(shard)}, shard 0 has {expected}. Make them alike.")
        engine = active().engine
        return XShards(engine, engine.put(ready))

    @staticmethod
    def from_pandas(frame: Any, num_shards: int | None = None) -> XShards:
        """Cut a pandas DataFrame into shards."""
        return XShards.partition(frames.frame_of(frame, "from_pandas"), num_shards)

    @staticmethod
    def from_arrow(table: Any, num_shards: int | None = None) -> XShards:
        """Cut an Arrow table into shards of Arrow tables."""
        if kind_of(table) != "table":
            raise DataError(f"from_arrow takes a pyarrow.Table; received a {type(table).__name__}.")
        return XShards.partition(table, num_shards)

    @staticmethod
    def from_spark_df(frame: Any, columns: Sequence[str] | None = None) -> XShards:
        """One shard (a pandas DataFrame) per partition of a Spark DataFrame; nothing runs yet."""
        from orca.shards.engines.spark_frames import frame_to_parts
        from orca.shards.moves import engine_by_name

        engine = engine_by_name("spark", frame.sparkSession)
        return XShards(engine, frame_to_parts(frame, columns, to_pandas))

    @staticmethod
    def from_ray_dataset(dataset: Any, as_arrow: bool = False) -> XShards:
        """One shard (a pandas DataFrame or Arrow table) per block of a Ray Dataset, by reference."""
        from orca.shards.engines.ray_datasets import dataset_to_parts
        from orca.shards.moves import engine_by_name

        shards = XShards(engine_by_name("ray"), dataset_to_parts(dataset))
        return shards if as_arrow else shards.transform_shard(to_pandas)

    @staticmethod
    def from_rdd(rdd: Any) -> XShards:
        """One shard per partition of an RDD; its records (arrays, or lists, tuples or dicts of them) are stacked."""
        from orca.shards.engines.spark_frames import rdd_to_parts
        from orca.shards.moves import engine_by_name

        return XShards(engine_by_name("spark"), rdd_to_parts(rdd))

    @staticmethod
    def load_pickle(path: str, minPartitions: int | None = None) -> XShards:
        """Read what `save_pickle` wrote. Unpickling runs code: only read files that you trust."""
        engine = active().engine
        paths = pickle_folder.listing(path)
        shards = XShards(engine, engine.put([[file] for file in paths])).transform_shard(pickle_folder.read)
        return shards.repartition(minPartitions) if minPartitions and minPartitions > len(paths) else shards

    # State

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def parts(self) -> Any:
        """The engine's handle to the shards, with all pending transformations done or planned."""
        if self._pending:
            with one_error():
                self._parts = self._engine.map(self._parts, Chain(self._pending))
            self._pending = ()
        return self._parts

    def cache(self) -> XShards:
        """Compute the shards and keep them, so that no later step repeats the work."""
        with one_error():
            self._parts = self._engine.cache(self.parts)
        self._cached = True
        return self

    def uncache(self) -> XShards:
        """Let the engine drop kept shards; on local and Ray shards live as long as somebody holds them."""
        if self._engine.name == "spark":
            self._engine.free(self._parts)
        self._cached = False
        return self

    def is_cached(self) -> bool:
        return self._cached

    def compute(self) -> XShards:
        """Run all pending work now."""
        return self.cache()

    def free(self) -> None:
        """Give the shards up at once instead of with the last reference."""
        self._engine.free(self._parts)

    def release(self) -> None:
        """Free shards that were made for one call."""
        self.free()

    def shares_parts(self, other: Any) -> bool:
        """Whether another XShards holds the very same shards."""
        return isinstance(other, XShards) and other._parts is self._parts

    def handles(self) -> Any:
        """What a rank needs to open the shards."""
        return self._engine.handles(self.parts)

    def num_partitions(self) -> int:
        return self._engine.count(self._parts)

    def shard_rows(self) -> list[int]:
        """Number of rows of each shard."""
        if self._rows is None:
            with one_error():
                self._rows = self._engine.rows(self.parts)
        return self._rows

    def __len__(self) -> int:
        return sum(self.shard_rows())

    def __repr__(self) -> str:
        return f"<XShards: {self.num_partitions()} partitions on the {self._engine.name} engine>"

    def _repr_html_(self) -> str:
        head = take_rows(self.first(), 0, 5)
        table = head._repr_html_() if hasattr(head, "_repr_html_") else f"<pre>{describe(as_arrays(head))}</pre>"
        return f"<p>{self!r}"[:-1].replace("<XShards", "XShards") + f"</p>{table}"

    # Bringing rows here

    def collect(self) -> list[Any]:
        """Bring all shards into this process, as a list."""
        with one_error():
            return self._engine.gather(self.parts)

    def first(self) -> Any:
        """Bring the first shard into this process."""
        with one_error():
            return self._engine.take(self.parts, 1)[0]

    def take(self, count: int) -> list[Any]:
        """Bring the first shards into this process."""
        with one_error():
            return self._engine.take(self.parts, count)

    def head(self, count: int = 5) -> Any:
        """Bring the first rows into this process, in the shards' own form."""
        needed = next(
            (index + 1 for index, rows in enumerate(itertools.accumulate(self.shard_rows())) if rows >= count),
            self.num_partitions(),
        )
        cut = self.transform_shard(take_rows, 0, count)
        return take_rows(join_rows(cut.take(needed)), 0, count)

    def inspect(self, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` on the first shard where it lies and return its (small) result."""
        with one_error():
            return self._engine.inspect(self.parts, fn)

    def walk(self, fn: Callable[[Any], Any]) -> Iterator[Any]:
        """The (small) results of `fn` on one shard after another, where they lie; those not reached stay pending."""
        low = 0
        while low < self.num_partitions():
            high = max(self._engine.at_once, 4 * low)
            yield from self._looked(fn, low, high)
            low = high

    def _looked(self, fn: Callable[[Any], Any], low: int, high: int) -> Iterator[Any]:
        if not isinstance(self._parts, list):
            with one_error():
                found = self._engine.take(self._engine.map(self.parts, lambda index, shard: fn(shard)), high)
            yield from found[low:]
            return
        self._begin(high)
        for part in self._parts[low:high]:
            with one_error():
                found = self._engine.inspect([part], fn)
            yield found

    def _begin(self, count: int) -> None:
        """Do the pending steps on the first shards of a list, and let them stay pending for the others."""
        last = self._pending[0] if len(self._pending) == 1 else None
        low = last.first if isinstance(last, StartingAt) else 0
        if not self._pending or low >= count:
            return
        chain = Chain(self._pending)
        with one_error():
            made = self._engine.map(self._parts[low:count], lambda index, shard: chain(low + index, shard))
        self._parts = [*self._parts[:low], *made, *self._parts[count:]]
        self._pending = (StartingAt(count, last.step if isinstance(last, StartingAt) else chain),)

    def to_numpy(self) -> Any:
        """Bring all rows into this process as one structure of arrays."""
        return join_rows(self.collect())

    def to_pandas(self) -> Any:
        """Bring all rows into this process as one pandas DataFrame."""
        return join_rows(self.transform_shard(to_pandas).collect())

    def concat_to_pdf(self) -> Any:
        """Bring all rows into this process as one pandas DataFrame."""
        return self.to_pandas()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.collect())

    # Working where the rows lie

    def transform_shard(self, fn: Callable[..., Any], *args: Any) -> XShards:
        """Run ``fn(shard, *args)`` on every shard; nothing happens until the result is needed."""
        if not callable(fn):
            raise ArgumentError(f"transform_shard takes a function of a shard; received {fn!r}.")
        return self._map(UserStep(fn, args))

    def _map(self, step: Step) -> XShards:
        return XShards(self._engine, self._parts, (*self._pending, step))

    def __getitem__(self, key: Any) -> XShards:
        """One entry of dict shards, or one or several columns of frames."""
        return self.transform_shard(Item(key))

    def select(self, columns: str | Sequence[str]) -> XShards:
        """Keep only these columns."""
        wanted = frames.names(columns)
        return self.transform_shard(lambda frame: checked(frame, wanted, "select")[wanted])

    def repartition(self, num_partitions: int) -> XShards:
        """Cut the same rows, in the same order, into shards of even size."""
        if num_partitions < 1:
            raise ArgumentError(f"num_partitions={num_partitions!r}: expected at least 1.")
        starts = [0, *itertools.accumulate(self.shard_rows())]
        cuts = [starts[-1] * index // num_partitions for index in range(num_partitions + 1)]

        def split(index: int, shard: Any) -> list[Any]:
            borders = [min(max(cut - starts[index], 0), starts[index + 1] - starts[index]) for cut in cuts]
            return [take_rows(shard, low, high) for low, high in itertools.pairwise(borders)]

        return self._shuffle(split, _concat, num_partitions)

    def partition_by(self, cols: str | Sequence[str], num_partitions: int | None = None) -> XShards:
        """Bring rows with equal values in these columns into the same shard."""
        columns = frames.names(cols)
        count = num_partitions or self.num_partitions()

        def split(index: int, shard: Any) -> list[Any]:
            frame = checked(shard, columns, "partition_by")
            return frames.split_by(frame, frames.bucket(frame, columns, count), count)

        return self._shuffle(split, _concat, count)

    def sort_values(self, col_names: str | Sequence[str], ascending: bool | Sequence[bool] = True) -> XShards:
        """Sort all rows by columns: the shards one after the other are the sorted frame. Stable."""
        columns = frames.names(col_names)
        upward = [ascending] * len(columns) if isinstance(ascending, bool) else list(ascending)
        if len(upward) != len(columns):
            raise ArgumentError(f"ascending={ascending!r} has not one entry for each of {columns}.")
        count = self.num_partitions()
        source = self.cache() if self._engine.name == "spark" else self
        samples = source.transform_shard(
            lambda frame: frames.sort_sample(checked(frame, columns, "sort_values"), columns[0])
        ).collect()
        known = np.sort(np.concatenate(samples)) if samples else np.empty(0, object)
        places = np.linspace(0, len(known), count + 1).astype(int)[1:-1]
        borders = known[places[places < len(known)]] if len(known) else np.empty(0, object)

        def split(index: int, frame: Any) -> list[Any]:
            target = frames.sort_targets(frame, columns[0], borders, upward[0])
            return frames.split_by(frame, target, len(borders) + 1)

        def join(index: int, pieces: list[Any]) -> Any:
            return join_rows(pieces).sort_values(columns, ascending=upward, kind="stable", ignore_index=True)

        return source._shuffle(split, join, len(borders) + 1)

    def group_by(self, columns: str | Sequence[str], agg: Any = None, join: bool = False) -> XShards:
        """Group all rows by columns and aggregate as pandas does; without `agg` count the rows (``size``).

        With ``join=True`` every row is kept and gets the values of its group.
        """
        keys = frames.names(columns)
        return self.partition_by(keys).transform_shard(frames.aggregate, keys, agg, join)

    def merge(
        self, right: XShards, how: str = "inner", on: str | Sequence[str] | None = None, **options: Any
    ) -> XShards:
        """Join two XShards of frames as pandas.merge does; ``left_on``, ``right_on`` and ``suffixes`` too."""
        if how == "cross":
            raise ArgumentError('how="cross" would pair all rows with all rows; it is not offered on shards.')
        shared = frames.names(on)
        if not shared and "left_on" not in options:
            mine, theirs = self.inspect(column_names), right.inspect(column_names)
            shared = [name for name in mine if name in theirs]
            if not shared:
                raise DataError(f"merge: no column in common. Left: {mine}. Right: {theirs}. Give on=.")
        left_keys = shared or frames.names(options.get("left_on"))
        right_keys = shared or frames.names(options.get("right_on"))
        count = max(self.num_partitions(), right.num_partitions())
        how_to = {**options, "how": how, **({"on": shared} if shared else {})}
        pairs = self.partition_by(left_keys, count).zip(right.partition_by(right_keys, count))
        return pairs.transform_shard(lambda pair: frames.pandas().merge(*pair, **how_to))

    def zip(self, other: XShards) -> XShards:
        """Pair the shards of two XShards; both must have the same number of shards and of rows in each."""
        if self.num_partitions() != other.num_partitions():
            raise ArgumentError(
                f"zip: {self.num_partitions()} shards cannot be paired with {other.num_partitions()}. "
                "Repartition one of them."
            )
        moved = other.to_engine(self._engine)
        with one_error():
            return XShards(self._engine, self._engine.zip(self.parts, moved.parts))

    def split(self) -> list[XShards]:
        """Take shards that are lists or tuples apart: one XShards per entry."""
        count = self.inspect(lambda shard: len(shard) if isinstance(shard, list | tuple) else -1)
        if count < 0:
            raise DataError("split works on shards that are lists or tuples.")
        return [self[index] for index in range(count)]

    def deduplicates(self) -> XShards:
        """Keep the first of rows that are equal in all columns."""
        columns = self.inspect(column_names)
        return self.partition_by(columns).transform_shard(lambda frame: frame.drop_duplicates(ignore_index=True))

    def unique(self) -> np.ndarray[Any, Any]:
        """The different values of one-column shards, in order of appearance, brought into this process."""
        found = self.transform_shard(unique).collect()
        return unique(np.concatenate(found))

    def sample(self, frac: float, replace: bool = False, seed: int = 0) -> XShards:
        """A random part of every shard, the same for the same seed on every engine."""
        if frac < 0 or (frac > 1 and not replace):
            raise ArgumentError(f"frac={frac!r}: expected 0 to 1, or replace=True.")

        def pick(index: int, shard: Any) -> Any:
            rows = row_count(shard)
            rng = np.random.default_rng([seed, index])
            return pick_rows(shard, rng.choice(rows, round(frac * rows), replace=replace) if rows else np.arange(0))

        return self._map(pick)

    def drop_missing_value(self, columns: str | Sequence[str] | None = None) -> XShards:
        """Drop rows with a missing value (in these columns)."""
        wanted = frames.names(columns)
        return self.transform_shard(
            lambda frame: checked(frame, wanted, "drop_missing_value").dropna(subset=wanted or None, ignore_index=True)
        )

    # Small results over all rows

    def describe(self, columns: str | Sequence[str] | None = None) -> Any:
        """Count, mean, standard deviation, minimum and maximum of numeric columns over all shards."""
        wanted = frames.names(columns)
        return frames.merge_moments(
            self.transform_shard(lambda f: frames.moments(checked(f, wanted, "describe"), wanted)).collect()
        )

    def max_values(self, columns: str | Sequence[str]) -> Any:
        """The largest value of each column over all shards: one value for one name, else a dict."""
        wanted = frames.names(columns)
        found = self.transform_shard(lambda f: checked(f, wanted, "max_values")[wanted].max().to_frame().T).collect()
        best = frames.pandas().concat(found).max()
        values = {name: best[name].item() if hasattr(best[name], "item") else best[name] for name in wanted}
        return values[columns] if isinstance(columns, str) else values

    def get_null_sum(self, columns: str | Sequence[str] | None = None) -> dict[str, int]:
        """How many values are missing in each column over all shards."""
        wanted = frames.names(columns)
        found = self.transform_shard(
            lambda f: (checked(f, wanted, "get_null_sum")[wanted] if wanted else f).isna().sum()
        ).collect()
        return {str(name): int(sum(part[name] for part in found)) for name in found[0].index}

    def get_schema(self) -> dict[str, Any]:
        """Columns and dtypes of frames, or names and dtypes with row shapes of arrays."""
        return dict(self.inspect(schema))

    # Getting ready for models

    def assembleFeatureLabelCols(self, featureCols: Columns, labelCols: Columns) -> XShards:
        """Turn frames into ``{"x": [one array per column], "y": …}``; see `stack_feature_labels`."""

        def assembled(frame: Any) -> Any:
            x = assemble(frame, featureCols, "featureCols", together=False)
            y = assemble(frame, labelCols, "labelCols", together=False)
            return {"x": list(x) if isinstance(x, tuple) else x, "y": list(y) if isinstance(y, tuple) else y}

        return self.transform_shard(assembled)

    def stack_feature_labels(self) -> XShards:
        """Make matrices of lists of single-number columns in ``{"x": […], "y": […]}``."""

        def stacked(entry: Any) -> Any:
            flat_columns = isinstance(entry, list | tuple) and all(np.ndim(array) == 1 for array in entry)
            return np.stack(entry, axis=1) if flat_columns else entry

        return self.transform_shard(lambda shard: {key: stacked(entry) for key, entry in shard.items()})

    def to_features(
        self, feature_cols: Columns, label_cols: Columns, together: bool = True, weight_col: str | None = None
    ) -> XShards:
        """Turn shards with named columns into ``{"x": …, "y": …}`` as `columns.assemble` says."""

        return self.transform_shard(features_and_labels, feature_cols, label_cols, together, weight_col)

    # Leaving

    def save_pickle(self, path: str) -> XShards:
        """Write every shard to a file of a folder on any fsspec path, from where the shards lie."""
        pickle_folder.prepare(path)
        written = self._map(lambda index, shard: np.array([pickle_folder.write(path, index, shard)])).collect()
        pickle_folder.commit(path, len(written))
        return self

    def to_engine(self, engine: Engine | str) -> XShards:
        """Move the shards to another engine ("local", "ray" or "spark"); they pass through this process."""
        from orca.shards.moves import engine_by_name

        target = engine_by_name(engine) if isinstance(engine, str) else engine
        if target.name == self._engine.name:
            return self
        return XShards(target, target.put(self.collect()))

    def to_spark_df(self) -> Any:
        """A Spark DataFrame of all rows; the shards go by Arrow, not row by row."""
        from orca.shards.engines.spark_frames import parts_to_frame

        shards = self.transform_shard(to_arrow).to_engine("spark")
        return parts_to_frame(shards.parts, shards.inspect(lambda table: table.schema))

    def to_ray_dataset(self) -> Any:
        """A Ray Dataset of all rows, one block per shard."""
        from orca.shards.engines.ray_datasets import parts_to_dataset

        return parts_to_dataset(self.transform_shard(to_arrow).to_engine("ray").parts)

    def _shuffle(self, split: Any, join: Any, count: int) -> XShards:
        with one_error():
            return XShards(self._engine, self._engine.shuffle(self.parts, Guarded(split), Guarded(join), count))


def _concat(index: int, pieces: list[Any]) -> Any:
    return join_rows(pieces)
