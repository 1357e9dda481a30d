"""XShards: rows in shards on an engine, lazily transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.arguments import (
    check_any_columns,
    check_columns,
    check_count,
    check_flag,
    check_function,
    check_names,
    check_path,
    check_text,
    optional,
    shown,
    wrong,
)
from orca.core.session import active
from orca.errors import ArgumentError, DataError
from orca.shards import frames, operations, pickle_folder
from orca.shards.columns import Columns, features_and_labels
from orca.shards.engines.base import Engine, Parts, Result, Shard, Step
from orca.shards.frames import Names
from orca.shards.lazy_parts import LazyParts
from orca.shards.shard_formats import schema, to_arrow, to_html, to_pandas
from orca.shards.steps import Item
from orca.shards.tree import as_arrays, check_alike, cut_evenly, join_rows, kind_of, row_count, take_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyspark.sql
    import ray.data


class XShards:
    """Rows in shards that are stored on this machine, in Ray's object store or in Spark.

    >>> import numpy as np
    >>> shards = XShards.partition({"x": np.arange(6.0), "y": np.arange(6)}, num_shards=2)
    >>> len(shards), shards.num_partitions()
    (6, 2)
    >>> shards.transform_shard(lambda shard: {"x": shard["x"] * 2, "y": shard["y"]}).to_numpy()["x"]
    array([ 0.,  2.,  4.,  6.,  8., 10.])
    """

    def __init__(self, engine: Engine, parts: Parts) -> None:
        self._lazy = LazyParts(engine, parts)

    @staticmethod
    def _of(lazy: LazyParts) -> XShards:
        shards = XShards(lazy.engine, lazy.stored)
        shards._lazy = lazy
        return shards

    # Constructors

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> XShards:
        """Split data of this process evenly into shards.

        Args:
            data: Arrays (also nested in dicts, lists and tuples), a DataFrame or an Arrow table.
            num_shards: Number of shards, at most one per row. Default: the number of cores.

        Raises:
            ArgumentError: If `num_shards` is less than 1 or more than the rows.
            DataError: If the arrays have different numbers of rows.
        """
        has_rows = isinstance(data, list | tuple | dict) or hasattr(data, "shape") or hasattr(data, "__array__")
        if not has_rows or callable(data):
            raise DataError(f"data={shown(data)}: expected arrays, a DataFrame or an Arrow table.")
        context = active()
        data = as_arrays(data)
        count = operations.shard_count(num_shards, row_count(data), context.cores)
        return XShards(context.engine, context.engine.put(cut_evenly(data, count)))

    @staticmethod
    def from_shards(shards: Sequence[Shard]) -> XShards:
        """Create XShards from a list of shards, of any sizes, in this order.

        Raises:
            ArgumentError: If the list is empty.
            DataError: If the shards differ in structure or dtypes.
        """
        if not isinstance(shards, Sequence | Iterator) or isinstance(shards, str | bytes):
            raise wrong("shards", shards, "a list of shards")
        arrays = [as_arrays(shard) for shard in shards]
        if not arrays:
            raise ArgumentError("shards=[]: from_shards received an empty list. Give at least one shard.")
        check_alike(arrays)
        engine = active().engine
        return XShards(engine, engine.put(arrays))

    @staticmethod
    def from_pandas(frame: pd.DataFrame, num_shards: int | None = None) -> XShards:
        """Split a pandas DataFrame evenly into shards; see `partition`."""
        if kind_of(frame) != "frame":
            raise DataError(f"frame= is a {type(frame).__name__}; from_pandas takes a pandas DataFrame.")
        return XShards.partition(frame, num_shards)

    @staticmethod
    def from_arrow(table: pa.Table, num_shards: int | None = None) -> XShards:
        """Split an Arrow table evenly into shards of Arrow tables; see `partition`."""
        if kind_of(table) != "table":
            raise DataError(f"table= is a {type(table).__name__}; from_arrow takes a pyarrow.Table.")
        return XShards.partition(table, num_shards)

    @staticmethod
    def from_spark_df(frame: pyspark.sql.DataFrame, columns: Sequence[str] | None = None) -> XShards:
        """Create one shard, a pandas DataFrame, per partition of a Spark DataFrame. Lazy.

        Args:
            frame: The Spark DataFrame.
            columns: Columns to read. Default: all.
        """
        from orca.shards.engines.spark_frames import frame_to_parts

        names = None if columns is None else frames.names(check_names("columns", columns))
        if not hasattr(frame, "sparkSession"):
            raise wrong("frame", frame, "a Spark DataFrame")
        engine = active().engine_of("spark", frame.sparkSession)
        return XShards(engine, frame_to_parts(frame, names, to_pandas))

    @staticmethod
    def from_ray_dataset(dataset: ray.data.Dataset, as_arrow: bool = False) -> XShards:
        """Create one shard, a pandas DataFrame or an Arrow table, per block of a Ray Dataset, without moving rows."""
        from orca.shards.engines.ray_datasets import dataset_to_parts

        as_arrow = check_flag("as_arrow", as_arrow)
        if not hasattr(dataset, "to_arrow_refs"):
            raise wrong("dataset", dataset, "a Ray Dataset")
        shards = XShards(active().engine_of("ray"), dataset_to_parts(dataset))
        return shards if as_arrow else shards.transform_shard(to_pandas)

    @staticmethod
    def from_rdd(rdd: pyspark.RDD) -> XShards:
        """Create one shard per partition of an RDD.

        The records of a partition are stacked if they are arrays, or lists, tuples or dicts, and joined if they are
        DataFrames or Arrow tables.
        """
        from orca.shards.engines.spark_frames import rdd_to_parts

        if not hasattr(rdd, "mapPartitions"):
            raise wrong("rdd", rdd, "an RDD of Spark")
        return XShards(active().engine_of("spark"), rdd_to_parts(rdd))

    @staticmethod
    def load_pickle(path: str, minPartitions: int | None = None) -> XShards:
        """Read what `save_pickle` wrote. Unpickling runs code: only read files that you trust.

        Args:
            path: The folder, on any fsspec path.
            minPartitions: Repartition into this many shards if fewer were saved.

        Raises:
            DataError: If the folder holds no saved shards, or not all of them.
        """
        least = 1 if minPartitions is None else check_count("minPartitions", minPartitions)
        engine = active().engine
        paths = pickle_folder.listing(check_path("path", path))
        shards = XShards(engine, engine.put([[file] for file in paths])).transform_shard(pickle_folder.read)
        if least <= len(paths):
            return shards
        return shards.repartition(operations.count_within("minPartitions", least, len(shards)))

    # State

    @property
    def engine(self) -> Engine:
        return self._lazy.engine

    @property
    def parts(self) -> Parts:
        """The engine's handle to the shards, with all pending transformations done or planned."""
        return self._lazy.parts

    def cache(self) -> XShards:
        """Compute the shards and keep them, so that no later step repeats the work."""
        self._lazy.cache()
        return self

    def uncache(self) -> XShards:
        """Let the engine drop cached shards that it can recompute (on Spark)."""
        self._lazy.uncache()
        return self

    def is_cached(self) -> bool:
        return self._lazy.cached

    compute = cache

    def free(self) -> None:
        """Release the shards now instead of with the last reference."""
        self._lazy.engine.free(self._lazy.stored)

    def release(self) -> None:
        """Free shards that were created for one call."""
        self.free()

    def shares_parts(self, other: object) -> bool:
        """Whether another XShards holds the very same shards."""
        return isinstance(other, XShards) and other._lazy.stored is self._lazy.stored

    def handles(self) -> Any:
        """Return what a rank needs to open the shards."""
        return self.engine.handles(self.parts)

    def num_partitions(self) -> int:
        return self._lazy.count

    def shard_rows(self) -> list[int]:
        """Return the number of rows of each shard."""
        return self._lazy.rows()

    def __len__(self) -> int:
        return sum(self.shard_rows())

    def __repr__(self) -> str:
        return f"<XShards: {self.num_partitions()} partitions on the {self.engine.name} engine>"

    def _repr_html_(self) -> str:
        return f"<p>{repr(self)[1:-1]}</p>{to_html(take_rows(self.first(), 0, 5))}"

    # Bringing rows into this process

    def collect(self) -> list[Shard]:
        """Return all shards as a list."""
        return self._lazy.gather()

    def first(self) -> Shard:
        """Return the first shard."""
        return self.take(1)[0]

    def take(self, count: int) -> list[Shard]:
        """Return the first `count` shards."""
        return self._lazy.take(check_count("count", count, least=0))

    def head(self, count: int = 5) -> Shard:
        """Return the first `count` rows, in the format of the shards."""
        return operations.head(self._lazy, check_count("count", count, least=0))

    def inspect(self, fn: Callable[[Shard], Result]) -> Result:
        """Return the (small) result of `fn` on the first shard, computed where the shard is stored."""
        return self._lazy.inspect(check_function("fn", fn, "fn(shard)"))

    def walk(self, fn: Callable[[Shard], Result]) -> Iterator[Result]:
        """Yield the (small) result of `fn` on one shard after another; shards that are not reached stay pending."""
        return self._lazy.walk(check_function("fn", fn, "fn(shard)"))

    def to_numpy(self) -> Any:
        """Return all rows as one structure of arrays."""
        return join_rows(self.collect())

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as one pandas DataFrame."""
        frame: pd.DataFrame = join_rows(self.transform_shard(to_pandas).collect())
        return frame

    concat_to_pdf = to_pandas

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.collect())

    # Transformations, where the rows are stored

    def transform_shard(self, fn: Callable[..., Shard], *args: Any) -> XShards:
        """Run ``fn(shard, *args)`` on every shard. Lazy: nothing runs until the result is needed.

        Args:
            fn: A function that takes a shard and returns a new one of any kind.
            args: Further arguments of `fn`.

        Raises:
            TransformError: When the result is needed, if `fn` fails on a shard; the message names the shard.
        """
        form = f"fn(shard{', ...' if args else ''})"
        return self._of(self._lazy.apply(check_function("fn", fn, form, (1 + len(args),)), *args))

    def transform_with_index(self, step: Step) -> XShards:
        """Run ``step(index, shard)`` on every shard. Lazy, as `transform_shard`."""
        return self._of(self._lazy.map(check_function("step", step, "step(index, shard)", (2,))))

    def __getitem__(self, key: Any) -> XShards:
        """Select one entry of dict shards, or one or several columns of DataFrames."""
        return self.transform_shard(Item(key))

    def select(self, columns: Names) -> XShards:
        """Keep only these columns."""
        return self._of(operations.select(self._lazy, check_names("columns", columns)))

    def repartition(self, num_partitions: int) -> XShards:
        """Split the same rows, in the same order, into `num_partitions` shards of even size, at most one per row."""
        count = check_count("num_partitions", num_partitions)
        return self._of(operations.repartition(self._lazy, operations.count_within("num_partitions", count, len(self))))

    def partition_by(self, cols: Names, num_partitions: int | None = None) -> XShards:
        """Bring rows with equal values in `cols` into the same of `num_partitions` shards (default: as many as now)."""
        columns = check_names("cols", cols)
        count = None if num_partitions is None else check_count("num_partitions", num_partitions)
        if count is not None and count > max(active().cores, self.num_partitions()):
            operations.count_within("num_partitions", count, len(self))
        return self._of(operations.partition_by(self._lazy, columns, count))

    def sort_values(self, col_names: Names, ascending: bool | Sequence[bool] = True) -> XShards:
        """Sort all rows across shards, with a stable sort; rows without a value come last.

        Args:
            col_names: One column name or several.
            ascending: One direction for all columns, or a list with one per column.
        """
        return self._of(operations.sort_values(self._lazy, check_names("col_names", col_names), ascending))

    def group_by(self, columns: Names | None = None, agg: Any = None, join: bool = False) -> XShards:
        """Group all rows by columns and aggregate as pandas does.

        Args:
            columns: One column name or several. Default: none, so that all rows are one group.
            agg: Aggregations as for ``DataFrameGroupBy.agg``; Spark's names, such as "avg" and "stddev", are known
                too. Default: the number of rows, as column ``size``.
            join: Keep every row and add the values of its group.
        """
        if not (agg is None or callable(agg) or isinstance(agg, str | list | tuple | Mapping)):
            raise wrong("agg", agg, "aggregations as for DataFrameGroupBy.agg: a name, a function, or a list or dict")
        none = columns is None or (isinstance(columns, list | tuple) and not columns)
        keys = None if none else check_names("columns", columns)
        return self._of(operations.group_by(self._lazy, keys, agg, check_flag("join", join)))

    def merge(self, right: XShards, how: str = "inner", on: Names | None = None, **options: Any) -> XShards:
        """Join two XShards of DataFrames as ``pandas.merge`` does.

        Args:
            right: The XShards to join with.
            how: "inner", "left", "right" or "outer".
            on: Columns to join on. Default: all that both have.
            options: Further options of ``pandas.merge``, such as ``left_on``, ``right_on`` and ``suffixes``.

        Raises:
            ArgumentError: If `how` is "cross".
            DataError: If there is no column to join on.
        """
        shared = None if on is None else check_names("on", on)
        return self._of(operations.merge(self._lazy, _checked("right", right)._lazy, how, shared, options))

    def zip(self, other: XShards) -> XShards:
        """Pair the shards of two XShards, which need the same number of shards and of rows in each.

        Raises:
            ArgumentError: If the numbers of shards differ.
            TransformError: When the result is needed, if two shards have different numbers of rows.
        """
        return self._of(operations.pair(self._lazy, _checked("other", other)._lazy))

    def split(self) -> list[XShards]:
        """Split shards that are lists or tuples into one XShards per entry."""
        return [self[index] for index in range(operations.entry_count(self._lazy))]

    def deduplicates(self) -> XShards:
        """Keep the first of rows that are equal in all columns."""
        return self._of(operations.deduplicate(self._lazy))

    def sample(self, frac: float, replace: bool = False, seed: int = 0) -> XShards:
        """Draw a random part of every shard; the same seed gives the same rows on every engine.

        Args:
            frac: Fraction of the rows, 0 to 1; more with `replace`.
            replace: Draw with replacement.
            seed: Seed of the random numbers.
        """
        return self._of(operations.sample(self._lazy, frac, replace, seed))

    def random_split(self, weights: Sequence[float], seed: int | None = None) -> list[XShards]:
        """Split the rows at random, for example into rows for training and rows for validation. Lazy.

        Every row is in exactly one of the parts, in its old order, and stays where it is stored. Each shard is split
        by the weights, so that a part of many rows has its share up to a few rows.

        Args:
            weights: The share of each part; only their ratios matter.
            seed: Seed of the random numbers: the same seed gives the same parts on every engine. Default: random.

        Raises:
            ArgumentError: If `weights` or `seed` has a wrong value.

        >>> import numpy as np
        >>> train, validation = XShards.partition(np.arange(10), num_shards=2).random_split([0.8, 0.2], seed=0)
        >>> len(train), len(validation)
        (8, 2)
        """
        return [self._of(part) for part in operations.random_split(self._lazy, weights, seed)]

    def drop_missing_value(self, columns: Names | None = None) -> XShards:
        """Drop rows with a missing value in `columns`, by default in any."""
        return self._of(operations.drop_missing(self._lazy, optional(check_names)("columns", columns)))

    # Small results over all rows

    def unique(self) -> np.ndarray[Any, Any]:
        """Return the distinct values of one-column shards, in order of appearance."""
        return operations.unique(self._lazy)

    def describe(self, columns: Names | None = None) -> pd.DataFrame:
        """Return count, mean, std, min and max of `columns`, by default of all numeric ones."""
        table: pd.DataFrame = operations.describe(self._lazy, optional(check_names)("columns", columns))
        return table

    def max_values(self, columns: Names) -> Any:
        """Return the largest value of each column: one value for one name, else a dict by name."""
        return operations.max_values(self._lazy, check_names("columns", columns))

    def get_null_sum(self, columns: Names | None = None) -> dict[str, int]:
        """Count the missing values of each of `columns`, by default of all."""
        return operations.null_counts(self._lazy, optional(check_names)("columns", columns))

    def get_schema(self) -> dict[str, Any]:
        """Return columns and dtypes of DataFrames, or names and dtypes with row shapes of arrays."""
        return dict(self.inspect(schema))

    # Features and labels

    def assembleFeatureLabelCols(self, featureCols: Columns, labelCols: Columns) -> XShards:
        """Turn DataFrames into ``{"x": [one array per column], "y": …}``; see `stack_feature_labels`."""
        features, labels = check_columns("featureCols", featureCols), check_columns("labelCols", labelCols)
        return self._of(operations.assemble_lists(self._lazy, features, labels))

    def stack_feature_labels(self) -> XShards:
        """Turn lists of single-number columns in ``{"x": […], "y": […]}`` into matrices."""
        return self._of(operations.stack_lists(self._lazy))

    def to_features(
        self, feature_cols: Columns, label_cols: Columns, together: bool = True, weight_col: str | None = None
    ) -> XShards:
        """Turn shards with named columns into ``{"x": …, "y": …, "w": …}``.

        Args:
            feature_cols: Columns of the features; a list in the list is an input of its own.
            label_cols: Columns of the labels, or None.
            together: Make one matrix of several single-number columns instead of several inputs.
            weight_col: The column of the row weights, or None.
        """
        features, labels = check_columns("feature_cols", feature_cols), check_any_columns("label_cols", label_cols)
        together, weights = check_flag("together", together), optional(check_text)("weight_col", weight_col)
        return self.transform_shard(features_and_labels, features, labels, together, weights)

    # Saving and moving

    def save_pickle(self, path: str) -> XShards:
        """Write every shard, from where it is stored, to a file of the folder `path`, an fsspec path.

        Raises:
            DataError: If the folder holds anything other than saved shards, which are replaced.
        """
        path = check_path("path", path)
        pickle_folder.prepare(path)
        sizes = self._lazy.map(lambda index, shard: np.array([pickle_folder.write(path, index, shard)])).gather()
        pickle_folder.commit(path, len(sizes))
        return self

    def to_engine(self, engine: Engine | str) -> XShards:
        """Move the shards to another engine ("local", "ray" or "spark"); they pass through this process."""
        if not isinstance(engine, Engine | str):
            raise wrong("engine", engine, 'an engine, or its name: "local", "ray" or "spark"')
        try:
            target = active().engine_of(engine) if isinstance(engine, str) else engine
        except ArgumentError as error:
            raise ArgumentError(f"engine={engine!r}: {error}") from error
        return self if target.name == self.engine.name else self._of(self._lazy.to_engine(target))

    def to_spark_df(self) -> pyspark.sql.DataFrame:
        """Return a Spark DataFrame of all rows; the shards are sent as Arrow, not row by row."""
        from orca.shards.engines.spark_frames import parts_to_frame

        shards = self.transform_shard(to_arrow).to_engine("spark")
        return parts_to_frame(shards.parts, shards.inspect(lambda table: table.schema))

    def to_ray_dataset(self) -> ray.data.Dataset:
        """Return a Ray Dataset of all rows, one block per shard."""
        from orca.shards.engines.ray_datasets import parts_to_dataset

        return parts_to_dataset(self.transform_shard(to_arrow).to_engine("ray").parts)


def _checked(name: str, value: object) -> XShards:
    """Return an argument that has to be XShards."""
    if not isinstance(value, XShards):
        raise wrong(name, value, "XShards")
    return value
