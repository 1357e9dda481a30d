"""Finds the frame of data, and the groups of grouped data."""

from __future__ import annotations

from typing import Any

from orca.core.arguments import check_names, shown
from orca.errors import ArgumentError, ColumnError, DataError, listed, suggest
from orca.tensorframes.frames.base import Frame

_KINDS = (
    "a Spark DataFrame, a pandas or polars DataFrame, an Arrow table, XShards of DataFrames or tables, or a Ray Dataset"
)


def adapt(data: Any, argument: str = "data") -> Frame:
    """Return the frame of data.

    >>> import pyarrow as pa
    >>> adapt(pa.table({"x": [1.0]})).columns()["x"].cell
    Cell(dtype='float64', shape=())
    """
    from orca.tensorframes.frames.ray import RayFrame
    from orca.tensorframes.frames.shards import ShardsFrame
    from orca.tensorframes.frames.spark import SparkFrame
    from orca.tensorframes.frames.tables import PandasFrame, PolarsFrame, TableFrame

    kinds: tuple[type[Frame], ...] = (SparkFrame, PandasFrame, TableFrame, PolarsFrame, ShardsFrame, RayFrame)
    for kind in kinds:
        if kind.accepts(data):
            return kind(data)
    raise DataError(f"{argument}={shown(data)}: expected {_KINDS}.")


def grouped(data: Any, by: Any) -> tuple[Frame, Any, tuple[str, ...]]:
    """Return a frame, the groups of Spark if these were given, and the keys."""
    from orca.tensorframes.frames.spark import SparkFrame, SparkGroups

    if by is not None:
        frame = adapt(data)
        names = check_names("by", by)
        keys = tuple(str(name) for name in ([names] if isinstance(names, str) else names))
        columns = frame.columns()
        for key in keys:
            if key not in columns:
                raise ColumnError(f"by={key!r} is not a column. Columns: {listed(columns)}." + suggest(key, columns))
        return frame, None, keys
    if SparkGroups.accepts(data):
        groups = SparkGroups(data)
        return SparkFrame(groups.frame), groups, tuple(groups.keys())
    if _is_pandas_groups(data):
        from orca.tensorframes.frames.tables import PandasFrame

        keys = tuple(str(name) for name in (data.keys if isinstance(data.keys, list) else [data.keys]))
        if not set(keys) <= {str(name) for name in data.obj.columns}:
            raise ArgumentError('Group by the names of columns, such as df.groupby("key"), or give by="key".')
        return PandasFrame(data.obj), None, keys
    raise ArgumentError(
        'aggregate needs the keys: give df.groupBy("key") of Spark, df.groupby("key") of pandas, or data with by="key".'
    )


def _is_pandas_groups(data: object) -> bool:
    return any(
        base.__module__.startswith("pandas.") and base.__name__ == "DataFrameGroupBy" for base in type(data).__mro__
    )
