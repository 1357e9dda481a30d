"""One shard in another form: as a DataFrame, as an Arrow table, as its schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.shards.frames import pandas
from orca.shards.tree import as_arrays, describe, kind_of, leaves, tree_map


def schema(shard: Any) -> dict[str, Any]:
    """Columns and dtypes of a shard."""
    if kind_of(shard) == "frame":
        return {"columns": list(shard.columns), "dtypes": {str(k): str(v) for k, v in shard.dtypes.items()}}
    told = describe(as_arrays(shard))
    return {"columns": list(told), "dtypes": told}


def unique(shard: Any) -> np.ndarray[Any, Any]:
    """The different values of a one-column shard, in order of appearance."""
    values = shard.iloc[:, 0] if kind_of(shard) == "frame" else shard
    found = pandas().unique(pandas().Series(values))
    return np.asarray(found, dtype=object if found.dtype.kind not in "biufcM" else None)


def to_pandas(shard: Any) -> Any:
    """Any shard with rows as a DataFrame; further axes of an array become one array per cell."""
    kind = kind_of(shard)
    if kind == "frame":
        return shard
    if kind == "series":
        return shard.to_frame()
    if kind == "table":
        return shard.to_pandas()
    tree = shard if isinstance(shard, dict) else {"value": shard}
    return pandas().DataFrame({name: leaf if np.ndim(leaf) == 1 else list(leaf) for name, leaf in leaves(tree)})


def to_arrow(shard: Any) -> Any:
    """Any shard with rows as an Arrow table; further axes of an array become lists."""
    import pyarrow as pa

    kind = kind_of(shard)
    if kind == "table":
        return shard
    if kind in ("frame", "series"):
        return pa.Table.from_pandas(to_pandas(shard), preserve_index=False)
    tree = tree_map(np.asarray, shard if isinstance(shard, dict) else {"value": shard})
    return pa.table({name: arrow_column(leaf) for name, leaf in leaves(tree)})


def arrow_column(array: np.ndarray[Any, Any]) -> Any:
    """An array as an Arrow column: further axes become lists, without Python objects per row."""
    import pyarrow as pa

    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):
        width = array.shape[axis]
        offsets = np.arange(0, len(column) + 1, width or 1, dtype="i4")
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column
