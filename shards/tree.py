"""Nested dicts, lists and tuples of arrays, DataFrames or tables, handled as one structure with rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.checks import check_unmasked

Tree = Any
"""Nested dicts, lists and tuples whose leaves are arrays, frames or tables with the same number of rows."""


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a nested structure with its dotted name.

    >>> [name for name, _ in leaves({"x": [1, 2], "y": 3})]
    ['x.0', 'x.1', 'y']
    """
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{name}.{index}" if name else str(index))
    else:
        yield name, tree


def tree_map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `fn` to the leaves of one or several trees of the same structure.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    if isinstance(tree, dict):
        return {key: tree_map(fn, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        mapped = [tree_map(fn, *group) for group in zip(tree, *others, strict=True)]
        return mapped if isinstance(tree, list) else tuple(mapped)
    return fn(tree, *others)


def kind_of(leaf: Any) -> str:
    """Return "frame", "series", "table", "array" or "object", by class name: pandas and pyarrow are not imported."""
    for base in type(leaf).__mro__:
        module, name = base.__module__.partition(".")[0], base.__name__
        if module == "pandas" and name in ("DataFrame", "Series"):
            return "frame" if name == "DataFrame" else "series"
        if module == "pyarrow" and name == "Table":
            return "table"
    return "array" if hasattr(leaf, "shape") else "object"


def row_count(tree: Any) -> int:
    """Return the number of rows, which has to be the same in every leaf.

    >>> row_count({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    """
    counts: dict[str, int] = {}
    for name, leaf in leaves(tree):
        shape = getattr(leaf, "shape", None)
        if shape is None:
            raise DataError(f"{name or 'the shard'} is a {type(leaf).__name__}; expected an array with rows.")
        if len(shape) == 0:
            raise DataError(f"{name or 'the array'} is a single number (shape ()); expected one entry per row.")
        counts[name] = int(shape[0])
    if not counts:
        return 0
    if len(set(counts.values())) > 1:
        raise DataError(_uneven(counts))
    return next(iter(counts.values()))


def _uneven(counts: dict[str, int]) -> str:
    """Describe arrays with different numbers of rows: the first three, and the first that differs from them."""
    names = list(counts)
    other = next(name for name in names if counts[name] != counts[names[0]])
    shown = list(dict.fromkeys([*names[:3], other]))
    listed = ", ".join(f"{name or 'data'}: {counts[name]}" for name in shown)
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    advice = "Give each the same number." if len(names) < 10 else "A list of lists is no matrix: use np.asarray."
    return f"The arrays have different numbers of rows ({listed}{more}). {advice}"


def length_of(shard: Any) -> int:
    """Return the rows of any shard: rows of its arrays, else entries of a list, else 1.

    >>> length_of({"x": np.zeros(3)}), length_of(["a", "b"]), length_of("text")
    (3, 2, 1)
    """
    try:
        return row_count(shard)
    except DataError:
        return len(shard) if isinstance(shard, list | tuple) else 1


def is_records(shard: Any) -> bool:
    """Whether a shard is a plain list (or tuple) of values without rows, such as numbers, each of which is a row.

    >>> is_records([1, 2]), is_records([{"a": 1}]), is_records([np.zeros(2), np.ones(2)])
    (True, True, False)
    """
    if not isinstance(shard, list | tuple):
        return False
    _, first = next(leaves(shard), ("", None))
    return not getattr(first, "shape", ())


def as_arrays(tree: Any, name: str = "") -> Any:
    """Turn leaves into arrays: anything that has rows is kept; a list of plain values becomes one array.

    `name` is what messages call the tree.

    >>> as_arrays([1, 2, 3])
    array([1, 2, 3])
    """
    if (
        isinstance(tree, list)
        and tree
        and not any(isinstance(v, dict | list | tuple) or hasattr(v, "shape") for v in tree)
    ):
        return np.asarray(tree)
    if isinstance(tree, dict):
        return {key: as_arrays(value, f"{name}.{key}" if name else str(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        parts = (as_arrays(value, f"{name}.{index}" if name else str(index)) for index, value in enumerate(tree))
        return type(tree)(parts)
    # A subclass such as np.memmap would be pickled by copying; a plain view of the same memory is not.
    if kind_of(tree) in ("frame", "series", "table") or type(tree) is np.ndarray:
        return _plain_floats(tree)
    if isinstance(tree, np.ma.MaskedArray):
        return check_unmasked(tree, name or "the data")
    return _plain_floats(tensor_to_numpy(tree, name or "the data") if hasattr(tree, "detach") else np.asarray(tree))


def refuse_masks(tree: Any) -> None:
    """Raise if some leaf is a masked array: models see what lies below a mask."""
    for name, leaf in leaves(tree):
        if isinstance(leaf, np.ma.MaskedArray):
            check_unmasked(leaf, name or "the data")


def tensor_to_numpy(tensor: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the values of a torch tensor; its class is not imported.

    bfloat16, which numpy lacks, becomes float32: every value has its equal there.
    """
    if getattr(tensor, "is_meta", False):
        raise DataError(f"{name} is a tensor on the meta device, which has no values. Create it on the CPU.")
    if getattr(tensor, "is_nested", False) or str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise DataError(f"{name} is a sparse or nested tensor, which is not supported. Make it dense with to_dense().")
    if getattr(tensor, "is_quantized", False):
        raise DataError(f"{name} is a quantized tensor ({tensor.dtype}). Turn it into floats with dequantize().")
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16" or "float8" in str(tensor.dtype):
        tensor = tensor.float()
    return np.asarray(tensor)


def _plain_floats(leaf: Any) -> Any:
    """Return arrays of bfloat16, which other libraries add to numpy, as float32."""
    return leaf.astype(np.float32) if str(getattr(leaf, "dtype", "")) == "bfloat16" else leaf


def take_rows(tree: Any, start: int, stop: int) -> Any:
    """Slice the rows of every leaf, as views where the leaf supports it."""
    if is_records(tree):
        return tree[start:stop]

    def take(leaf: Any) -> Any:
        kind = kind_of(leaf)
        if kind in ("frame", "series"):
            return leaf.iloc[start:stop]
        return leaf.slice(start, max(0, stop - start)) if kind == "table" else leaf[start:stop]

    return tree_map(take, tree)


def cut_evenly(tree: Any, count: int) -> list[Any]:
    """Split the rows into `count` pieces whose sizes differ by at most one, as views where the leaves support it.

    >>> [len(piece) for piece in cut_evenly(np.arange(5), 2)]
    [2, 3]
    """
    rows = row_count(tree)
    cuts = [rows * index // count for index in range(count + 1)]
    return [take_rows(tree, start, stop) for start, stop in itertools.pairwise(cuts)]


def pick_rows(tree: Any, index: np.ndarray[Any, Any]) -> Any:
    """Gather rows of every leaf by index, with one copy."""
    if is_records(tree):
        return type(tree)(tree[position] for position in index)

    def pick(leaf: Any) -> Any:
        return leaf.iloc[index] if kind_of(leaf) in ("frame", "series") else leaf.take(index, **_axis(leaf))

    return tree_map(pick, tree)


def _axis(leaf: Any) -> dict[str, int]:
    return {"axis": 0} if isinstance(leaf, np.ndarray) else {}


def join_rows(trees: Sequence[Any]) -> Any:
    """Concatenate the rows of trees of the same structure, with one copy."""
    if len(trees) == 1:
        return trees[0]
    if all(map(is_records, trees)):
        return type(trees[0])(itertools.chain.from_iterable(trees))
    return tree_map(lambda *parts: _join(list(parts)), *trees)


def _join(parts: list[Any]) -> Any:
    # An empty shard may not have the inner shape or exact dtype of the others, so it is left out.
    parts = [part for part in parts if part.shape[0]] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    kind = kind_of(parts[0])
    if kind in ("frame", "series"):
        import pandas

        # Default indexes that each start at 0 are renumbered. Consecutive pieces of one index, or real indexes, stay.
        plain = all(isinstance(part.index, pandas.RangeIndex) and part.index.name is None for part in parts)
        plain = plain and any(one.index.stop != two.index.start for one, two in itertools.pairwise(parts))
        return pandas.concat(parts, ignore_index=plain)
    if kind == "table":
        import pyarrow

        return pyarrow.concat_tables(parts, promote_options="permissive")
    return np.concatenate(parts)


def describe(tree: Any) -> dict[str, str]:
    """Return dtype and row shape of every leaf, for messages and for comparing shards.

    >>> describe({"x": np.zeros((4, 8, 8), "f4"), "y": np.zeros(4, "i8")})
    {'x': 'float32[8, 8]', 'y': 'int64[]'}
    """
    dtypes: dict[str, str] = {}
    for name, leaf in leaves(tree):
        kind = kind_of(leaf)
        if kind == "frame":
            dtypes |= {f"{name}.{column}" if name else str(column): str(dtype) for column, dtype in leaf.dtypes.items()}
        elif kind == "table":
            dtypes |= {f"{name}.{field.name}" if name else field.name: str(field.type) for field in leaf.schema}
        else:
            dtypes[name] = f"{leaf.dtype}{list(leaf.shape[1:])}"
    return dtypes


def check_alike(shards: Sequence[Any]) -> None:
    """Raise if the shards differ in structure or dtypes."""
    expected = describe(shards[0])
    for index, shard in enumerate(shards):
        row_count(shard)
        if describe(shard) != expected:
            raise DataError(f"Shard {index} has {describe(shard)}, shard 0 has {expected}. Make them alike.")


def size_in_bytes(tree: Any) -> int:
    """Sum the bytes of all leaves."""
    total = 0
    for _, leaf in leaves(tree):
        size = leaf.memory_usage(index=False) if kind_of(leaf) in ("frame", "series") else getattr(leaf, "nbytes", 0)
        total += int(np.sum(size))
    return total
