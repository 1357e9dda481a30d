"""One shard in another format: as a DataFrame, an Arrow table, html or its schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.shards.engines.base import Shard
from orca.shards.frames import Frame, pandas
from orca.shards.tree import as_arrays, describe, kind_of, leaves, tree_map


def schema(shard: Shard) -> dict[str, Any]:
    """Return columns and dtypes of a shard."""
    if kind_of(shard) == "frame":
        return {"columns": list(shard.columns), "dtypes": {str(k): str(v) for k, v in shard.dtypes.items()}}
    dtypes = describe(as_arrays(shard))
    return {"columns": list(dtypes), "dtypes": dtypes}


def unique(shard: Shard) -> np.ndarray[Any, Any]:
    """Return the distinct values of a one-column shard, in order of appearance."""
    column = shard.iloc[:, 0] if kind_of(shard) == "frame" else shard
    values = pandas().unique(pandas().Series(column))
    return np.asarray(values, dtype=object if values.dtype.kind not in "biufcM" else None)


def to_html(shard: Shard) -> str:
    """Return a shard as html, for notebooks: DataFrames as tables, arrays by dtype and shape."""
    if hasattr(shard, "_repr_html_"):
        return str(shard._repr_html_())
    return f"<pre>{describe(as_arrays(shard))}</pre>"


def to_pandas(shard: Shard) -> Frame:
    """Turn any shard with rows into a DataFrame; an array with further axes becomes a column of arrays."""
    kind = kind_of(shard)
    if kind == "frame":
        return shard
    if kind == "series":
        return shard.to_frame()
    if kind == "table":
        return shard.to_pandas()
    tree = shard if isinstance(shard, dict) else {"value": shard}
    return pandas().DataFrame({name: leaf if np.ndim(leaf) == 1 else list(leaf) for name, leaf in leaves(tree)})


def to_arrow(shard: Shard) -> Any:
    """Turn any shard with rows into an Arrow table; an array with further axes becomes a column of lists."""
    import pyarrow as pa

    kind = kind_of(shard)
    if kind == "table":
        return shard
    if kind in ("frame", "series"):
        return pa.Table.from_pandas(to_pandas(shard), preserve_index=False)
    tree = tree_map(np.asarray, shard if isinstance(shard, dict) else {"value": shard})
    return pa.table({name: arrow_column(leaf) for name, leaf in leaves(tree)})


def arrow_column(array: np.ndarray[Any, Any], flat: Any = None) -> Any:
    """Turn an array into an Arrow column: further axes become lists, without Python objects per row.

    `flat` are its values as an Arrow array, if they are converted already.
    """
    import pyarrow as pa

    column = pa.array(np.ascontiguousarray(array).reshape(-1)) if flat is None else flat
    for axis in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:axis]))
        offsets = np.arange(count + 1, dtype="i4") * np.int32(array.shape[axis])
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column
