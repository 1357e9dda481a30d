"""Rows of any kind: predict returns the same rows in their order, or refuses them with an OrcaError."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from orca.context import init_orca_context
from tests.fuzzing.echo import echo

Random = np.random.Generator
_EPOCH = datetime.datetime(2024, 1, 1)


def _floats(rng: Random, rows: int) -> Any:
    return np.where(rng.random(rows) < 0.1, rng.choice([np.nan, np.inf, -0.0, 1e300]), rng.normal(size=rows))


def _some_missing(values: list[Any], rng: Random) -> list[Any]:
    return [None if rng.random() < 0.2 else value for value in values]


NUMBERS: dict[str, Callable[[Random, int], Any]] = {
    "float64": _floats,
    "float32": lambda rng, rows: rng.normal(size=rows).astype("f4"),
    "float16": lambda rng, rows: rng.normal(size=rows).astype("f2"),
    "int64": lambda rng, rows: rng.integers(-(2**62), 2**62, rows),
    "int8": lambda rng, rows: rng.integers(-128, 128, rows).astype("i1"),
    "uint64": lambda rng, rows: rng.integers(0, 2**64, rows, dtype="u8"),
    "uint8": lambda rng, rows: rng.integers(0, 256, rows).astype("u1"),
    "bool": lambda rng, rows: rng.random(rows) < 0.5,
}
"""Columns whose values are numbers."""
OTHERS: dict[str, Callable[[Random, int], Any]] = {
    "complex": lambda rng, rows: rng.normal(size=rows) + 1j,
    "datetime": lambda rng, rows: np.datetime64("2024-01-01") + rng.integers(0, 999, rows).astype("m8[D]"),
    "timedelta": lambda rng, rows: rng.integers(0, 999, rows).astype("m8[s]"),
    "text": lambda rng, rows: np.array([f"t{value}" for value in rng.integers(0, 9, rows)], dtype=object),
    "digits as text": lambda rng, rows: np.array([str(value) for value in rng.integers(0, 9, rows)], dtype=object),
    "bytes": lambda rng, rows: np.array([b"\x00\xff"] * rows, dtype=object),
    "mixed": lambda rng, rows: np.array(
        [("a", 1, None, 2.5)[value] for value in rng.integers(0, 4, rows)], dtype=object
    ),
    "dicts": lambda rng, rows: _objects([{"a": 1}] * rows),
    "sets": lambda rng, rows: _objects([{1, 2}] * rows),
    "ragged": lambda rng, rows: _objects([[1.0] * int(value) for value in rng.integers(0, 4, rows)]),
    "none": lambda rng, rows: _objects([None] * rows),
}
"""Columns that a model of numbers cannot use, or only in part."""
LISTS: dict[str, Callable[[Random, int], Any]] = {
    "lists": lambda rng, rows: _objects(rng.normal(size=(rows, 3)).tolist()),
    "arrays": lambda rng, rows: _objects(list(rng.normal(size=(rows, 3)))),
}
"""Columns with several numbers in each row."""
PANDAS: dict[str, Callable[[Random, int], Any]] = {
    "Int64": lambda rng, rows: pd.array(_some_missing(rng.integers(0, 9, rows).tolist(), rng), dtype="Int64"),
    "Float64": lambda rng, rows: pd.array(_some_missing(rng.normal(size=rows).tolist(), rng), dtype="Float64"),
    "boolean": lambda rng, rows: pd.array(_some_missing([True] * rows, rng), dtype="boolean"),
    "string": lambda rng, rows: pd.array(["a"] * rows, dtype="string"),
    "category": lambda rng, rows: pd.Categorical(rng.choice(["a", "b"], rows)),
    "numbers as category": lambda rng, rows: pd.Categorical(rng.choice([1.5, 2.5], rows)),
    "period": lambda rng, rows: pd.period_range("2024-01", periods=rows, freq="M"),
    "interval": lambda rng, rows: pd.interval_range(0, periods=rows) if rows else pd.IntervalIndex([]),
    "sparse": lambda rng, rows: pd.arrays.SparseArray(rng.integers(0, 2, rows).astype("f8")),
    "with time zone": lambda rng, rows: pd.date_range("2024-01-01", periods=rows, tz="UTC"),
    "decimals": lambda rng, rows: _objects([decimal.Decimal(int(value)) / 4 for value in rng.integers(0, 99, rows)]),
    "dates": lambda rng, rows: _objects([_EPOCH.date()] * rows),
    "arrow": lambda rng, rows: pd.array(rng.integers(0, 9, rows).tolist(), dtype="int64[pyarrow]"),
}
"""Columns of pandas' own types."""
COUNTED = {"numbers as category", "sparse", "decimals", "arrow", "Int64", "Float64", "boolean", *NUMBERS, *LISTS}
"""Columns whose values are numbers, whatever holds them."""
KINDS = {**NUMBERS, **OTHERS, **LISTS, **PANDAS}
NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "features", "label", "prediction", "", " ", "x.y", "é"]),
    st.integers(-2, 3),
    st.text(max_size=3),
    st.tuples(st.integers(0, 1), st.text(max_size=1)),
    st.sampled_from([None, 1.5, True]),
)
INDEXES = ("range", "duplicates", "text", "multi", "times", "reversed")
FRAMES = st.tuples(
    st.just("frame"),
    st.integers(0, 2**32 - 1),
    st.integers(0, 7),
    st.lists(st.tuples(NAMES, st.sampled_from(sorted(KINDS))), max_size=5),
    st.sampled_from(INDEXES),
    st.sampled_from(["all", "one", "first", "nested", "wrong", "none", "twice"]),
)
TABLES = st.tuples(
    st.just("table"),
    st.integers(0, 2**32 - 1),
    st.integers(0, 7),
    st.lists(st.tuples(st.text(max_size=2), st.integers(0, 40)), max_size=5),
    st.integers(1, 4),
    st.sampled_from(["all", "one", "first", "nested", "wrong", "none", "twice"]),
)
ARRAYS = st.tuples(
    st.just("array"),
    st.integers(0, 2**32 - 1),
    st.integers(0, 7),
    st.lists(
        st.tuples(st.sampled_from(sorted({**NUMBERS, **OTHERS})), st.lists(st.integers(0, 3), max_size=3)), max_size=3
    ),
    st.sampled_from(["plain", "transposed", "reversed", "big endian", "read only", "masked", "structured", "strided"]),
    st.sampled_from(["alone", "list", "tuple", "dict", "x", "nested", "python", "scalar", "pair"]),
)
ODD = [
    *[None, 1, 1.5, "path", b"x", True, (), [], {}, object(), int, [None], [[]], {"x": None}, {"x": []}, [1, "a"]],
    *[[[1], [2, 3]], {"a": {"b": []}}, [{}], range(3), {1, 2}, iter([1])],
]
ODDITIES = st.tuples(st.just("odd"), st.sampled_from(ODD))
CASES = st.one_of(FRAMES, TABLES, ARRAYS, FRAMES, TABLES, ARRAYS, ODDITIES)


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _number(value: Any) -> float:
    """The number in a cell; NaN for a missing one."""
    if value is None or value is pd.NA:
        return math.nan
    if isinstance(value, list | np.ndarray):
        return float(sum(_number(entry) for entry in np.ravel(value)))
    return float(value)


def _same_numbers(actual: Any, cells: list[list[Any]], rows: int) -> None:
    """Require that each output is the sum of its row's cells."""
    values = [float(value) for value in actual]
    assert len(values) == rows, f"{len(values)} predictions for {rows} rows"
    with np.errstate(all="ignore"):
        expected = np.array([sum(_number(column[row]) for column in cells) for row in range(rows)], "f8")
    np.testing.assert_allclose(np.array(values, "f8"), expected, rtol=2e-2, atol=1e-2)


def _chosen(names: list[Any], how: str) -> Any:
    """What is passed as feature_cols for a choice."""
    if how == "none" or not names:
        return None
    return {
        "all": names,
        "one": names[0],
        "first": names[:1],
        "nested": [names, names[-1]],
        "wrong": [*names, "missing"],
        "twice": [names[0], names[0]],
    }[how]


def _read(names: list[Any], how: str) -> list[Any]:
    """The columns that a choice reads, as often as it reads them."""
    if how == "none" or not names:
        return ["features"]
    if how == "nested":
        return [*names, names[-1]]
    return {"all": names, "one": names[:1], "first": names[:1], "twice": [names[0]] * 2}[how]


def check_frame(est: Any, start: int, rows: int, columns: list[Any], index: str, how: str) -> None:
    rng = np.random.default_rng(start)
    parts = [pd.Series(KINDS[kind](rng, rows)) for _, kind in columns]
    frame = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=range(rows))
    names = [name for name, _ in columns]
    frame.columns = pd.Index(names, dtype=object, tupleize_cols=False)
    frame.index = _index(index, rows)
    kept = frame.copy()
    # A tuple in feature_cols is a group of columns, not a name.
    chosen = [name for name in names if not isinstance(name, tuple)]
    predicted = est.predict(frame, feature_cols=_chosen(chosen, how), batch_size=3)
    pd.testing.assert_frame_equal(frame, kept)
    assert isinstance(predicted, pd.DataFrame), f"a frame gave a {type(predicted).__name__}"
    assert predicted.index.equals(frame.index), "another index"
    if "prediction" not in names:
        pd.testing.assert_frame_equal(predicted.drop(columns="prediction"), frame)
    if names.count("prediction") > 1:
        return
    read = [str(name) for name in _read(chosen, how)]
    kinds = {str(name): kind for name, kind in columns}
    assert all(kinds[name] in COUNTED or _all_numbers(kinds[name], rows) for name in read), f"numbers out of {kinds}"
    cells = [kept.iloc[:, [str(name) for name in names].index(name)].tolist() for name in read]
    _same_numbers(predicted["prediction"].tolist(), cells, rows)


def _all_numbers(kind: str, rows: int) -> bool:
    """Whether a column of some other kind may hold nothing but numbers."""
    return rows == 0 or kind in ("mixed", "ragged", "none")


def _index(kind: str, rows: int) -> Any:
    if kind == "multi":
        return pd.MultiIndex.from_arrays([range(rows), range(rows)], names=["one", "two"])
    return {
        "range": lambda: pd.RangeIndex(rows),
        "duplicates": lambda: pd.Index([7] * rows),
        "text": lambda: pd.Index([f"r{row}" for row in range(rows)], dtype=object),
        "times": lambda: pd.date_range("2024-01-01", periods=rows),
        "reversed": lambda: pd.RangeIndex(rows, 0, -1),
    }[kind]()


ARROW_TYPES: list[tuple[Any, Callable[[Random], Any]]] = [
    *[
        (kind, lambda rng: int(rng.integers(0, 100)))
        for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())
    ],
    *[(kind, lambda rng: float(rng.normal())) for kind in (pa.float32(), pa.float64())],
    (pa.bool_(), lambda rng: bool(rng.random() < 0.5)),
    (pa.decimal128(12, 2), lambda rng: decimal.Decimal(int(rng.integers(0, 999))) / 4),
    (pa.list_(pa.float32()), lambda rng: [1.0, float(rng.normal())]),
    (pa.list_(pa.int64(), 2), lambda rng: [1, int(rng.integers(0, 9))]),
    (pa.large_list(pa.list_(pa.float64(), 2)), lambda rng: [[1.0, float(rng.normal())]]),
    (pa.dictionary(pa.int8(), pa.float64()), lambda rng: float(rng.integers(0, 3))),
    (pa.string(), lambda rng: "a"),
    (pa.large_string(), lambda rng: "1"),
    (pa.binary(), lambda rng: b"\x00"),
    (pa.timestamp("us"), lambda rng: _EPOCH),
    (pa.date32(), lambda rng: _EPOCH.date()),
    (pa.duration("s"), lambda rng: datetime.timedelta(seconds=5)),
    (pa.time64("us"), lambda rng: datetime.time(3)),
    (pa.struct([("a", pa.int64())]), lambda rng: {"a": 1}),
    (pa.map_(pa.string(), pa.int64()), lambda rng: [("a", 1)]),
    (pa.null(), lambda rng: None),
    (pa.list_(pa.float64()), lambda rng: [1.0] * int(rng.integers(0, 3))),
]
ARROW_NUMBERS = range(13)
"""The first types of the list hold numbers."""


def check_table(est: Any, start: int, rows: int, columns: list[Any], chunks: int, how: str) -> None:
    rng = np.random.default_rng(start)
    gaps = rng.random() < 0.3
    arrays, kinds = [], []
    for _, number in columns:
        kind, make = ARROW_TYPES[number % len(ARROW_TYPES)]
        kinds.append(number % len(ARROW_TYPES))
        values = [None if gaps and rng.random() < 0.3 else make(rng) for _ in range(rows)]
        edges = sorted(rng.integers(0, rows + 1, chunks - 1).tolist())
        pieces = [values[low:high] for low, high in zip([0, *edges], [*edges, rows], strict=True)]
        arrays.append(pa.chunked_array([pa.array(piece, kind) for piece in pieces], kind))
    names = [name for name, _ in columns]
    table = pa.table(arrays, names=names)
    predicted = est.predict(table, feature_cols=_chosen(names, how), batch_size=3)
    assert isinstance(predicted, pa.Table), f"a table gave a {type(predicted).__name__}"
    rest = [name for name in names if name != "prediction"]
    assert predicted.select(range(len(names))).equals(table) or "prediction" in names, "other columns"
    assert set(rest) <= set(predicted.column_names), f"columns {predicted.column_names}"
    read = _read(names, how)
    assert rows == 0 or all(kinds[names.index(name)] in ARROW_NUMBERS or _flat(table, name) for name in read), "silent"
    cells = [table.column(names.index(name)).to_pylist() for name in read]
    _same_numbers(predicted.column("prediction").to_pylist(), cells, rows)


def _flat(table: Any, name: str) -> bool:
    """Whether lists of several lengths happen to have one length."""
    return pa.types.is_list(table.schema.field(table.column_names.index(name)).type)


def check_array(est: Any, start: int, rows: int, parts: list[Any], layout: str, form: str) -> None:
    rng = np.random.default_rng(start)
    arrays = [_array(rng, kind, (rows, *shape), layout) for kind, shape in parts] or [np.float64(1.5)]
    data = {
        "alone": lambda: arrays[0],
        "list": lambda: arrays,
        "tuple": lambda: tuple(arrays),
        "dict": lambda: {str(place): array for place, array in enumerate(arrays)},
        "x": lambda: {"x": arrays[0]},
        "nested": lambda: {"x": {"a": arrays, "b": arrays[0]}},
        "python": lambda: arrays[0].tolist(),
        "scalar": lambda: arrays[0].reshape(-1)[0] if arrays[0].size else arrays[0],
        "pair": lambda: {"x": arrays[0], "y": arrays[-1]},
    }[form]()
    predicted = np.asarray(est.predict(data, batch_size=3))
    used = arrays if form in ("list", "tuple", "dict") else [*arrays, arrays[0]] if form == "nested" else arrays[:1]
    if form in ("python", "scalar"):
        return  # a list holds several inputs, and the element of an array may be a list
    masked = any(np.ma.is_masked(array) for array in used)
    assert layout != "structured", "records were taken for plain numbers"
    assert not masked, "a masked array was taken for plain numbers"
    kinds = [array.dtype.kind for array in used]
    assert set(kinds) <= set("biuf") or rows == 0, f"numbers out of arrays of kinds {kinds}"
    cells = [[np.asarray(row, "f8") for row in array] for array in used]
    _same_numbers(predicted, cells, rows)


def _array(rng: Random, kind: str, shape: tuple[int, ...], layout: str) -> Any:
    size = math.prod(shape)
    array = {**NUMBERS, **OTHERS}[kind](rng, size).reshape(shape)
    if layout == "transposed":
        return np.asfortranarray(array)
    if layout == "reversed":
        return array[::-1]
    if layout == "big endian" and array.dtype.kind in "iufc":
        return array.astype(array.dtype.newbyteorder(">"))
    if layout == "read only":
        array.flags.writeable = False
    if layout == "masked":
        return np.ma.masked_array(array, mask=rng.random(shape) < 0.5)
    if layout == "structured":
        return np.array([(1, 2.0)] * shape[0], dtype=[("a", "i4"), ("b", "f8")])
    if layout == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    return array


@contextmanager
def target() -> Iterator[Callable[[Any], None]]:
    est = echo()
    checks = {"frame": check_frame, "table": check_table, "array": check_array}

    def check(case: tuple[Any, ...]) -> None:
        if case[0] == "odd":
            est.predict(case[1])
        else:
            checks[case[0]](est, *case[1:])

    with init_orca_context(cores=1):
        yield check
