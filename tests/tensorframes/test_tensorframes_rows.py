"""map_rows gives what one run of a session per row gives, however the rows are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca.tensorframes.frames.adapting import adapt
from orca.tensorframes.matching import bind, feeds_by_name
from orca.tensorframes.programs.capturing import capture
from orca.tensorframes.steps import RowStep
from tests.tensorframes.row_graphs import CASES, RUNS, Case


def mapped(tensor: Any, table: pa.Table) -> tuple[list[Any], str]:
    """Return the new column, and how it was computed."""
    frame = adapt(table)
    program, _ = capture(tensor)
    feeds = feeds_by_name(program, frame.columns(), {}, rows=True)
    bound = bind(program, feeds, rows=True)
    return frame.map(RowStep(bound, tuple(feeds))).column(0).to_pylist(), bound.tier


def table_of(rows: Any) -> pa.Table:
    return pa.table({"x": pa.array([row.tolist() if hasattr(row, "tolist") else row for row in rows], kind_of(rows))})


def kind_of(rows: Any) -> pa.DataType:
    if isinstance(rows[0], str):
        return pa.string()
    first = np.asarray(rows[0])
    kind = pa.from_numpy_dtype(first.dtype)
    for _ in range(first.ndim):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    ("case", "shaped"), RUNS, ids=[f"{case}{'' if shaped else ', no shape'}" for case, shaped in RUNS]
)
def test_rows_equal_one_run_of_a_session_each(case: Case, shaped: bool):
    ragged = isinstance(case.rows, list) and not isinstance(case.rows[0], str)
    shape = (None,) if ragged else np.shape(case.rows[0])
    with tf.Graph().as_default():
        x = tf.placeholder(case.dtype, shape if shaped else None, "x")
        tensor = tf.identity(case.build(x), name="z")
        with tf.Session() as session:
            expected = [session.run(tensor, {x: row}) for row in case.rows]
    results, tier = mapped(tensor, table_of(case.rows))
    if shaped:
        assert tier == case.tier
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        if isinstance(value, bytes) or np.asarray(value).dtype == object:
            assert result == (value.decode() if isinstance(value, bytes) else [one.decode() for one in value])
            continue
        array = np.asarray(result, value.dtype).reshape(np.shape(value) if np.size(result) == 0 else np.shape(result))
        assert array.shape == np.shape(value)
        if tier == "vectorized":
            np.testing.assert_allclose(array, value, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(array, value)


def test_there_are_more_than_forty_graphs_in_all_three_ways():
    assert len(CASES) > 40
    assert {case.tier for case in CASES} == {"vectorized", "map_fn", "row"}


PROGRAMS = {
    "affine": (lambda x: 2 * x + 1, lambda x: 2 * x + 1),
    "total": (tf.reduce_sum, lambda x: np.sum(x, dtype=x.dtype)),
    "stacked": (lambda x: tf.stack([x, -x]), lambda x: np.stack([x, -x])),
    "size": (tf.size, lambda x: np.int32(np.size(x))),
}
_CACHE: dict[Any, Any] = {}


def program_for(name: str, dtype: str, rank: int) -> Any:
    key = name, dtype, rank
    if key not in _CACHE:
        with tf.Graph().as_default():
            x = tf.placeholder(tf.as_dtype(dtype), [None] * rank, "x")
            _CACHE[key] = tf.identity(PROGRAMS[name][0](x), name="z")
    return _CACHE[key]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shapes_and_numbers_of_rows_give_what_numpy_gives(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(PROGRAMS)))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    rank = data.draw(st.integers(0, 2))
    rows = data.draw(st.sampled_from([0, 1, 2, 7, 30]))
    sizes = st.tuples(*[st.integers(0, 4)] * rank)
    one_shape = data.draw(sizes) if data.draw(st.booleans()) else None
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = [one_shape if one_shape is not None else data.draw(sizes) for _ in range(rows)]
    # A list of no lists does not tell how long these would be.
    shapes = [tuple(0 for _ in shape) if 0 in shape else shape for shape in shapes]
    values = [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    kind: Any = pa.from_numpy_dtype(np.dtype(dtype))
    for _ in range(rank):
        kind = pa.list_(kind)
    table = pa.table({"x": pa.array([value.tolist() for value in values], kind)})
    result = tfs.map_rows(program_for(name, dtype, rank), table)
    assert result.column_names == ["z", "x"]
    assert result["x"].equals(table["x"])
    expected = [PROGRAMS[name][1](value).tolist() for value in values]
    assert result["z"].to_pylist() == expected


def test_ten_thousand_and_one_rows_of_three_lengths_keep_their_order():
    rng = np.random.default_rng(0)
    lists = [rng.random(1 + row % 3) for row in range(10_001)]
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [None], "x")
        y = tf.placeholder(tf.int64, [], "y")
        total = tf.add(tf.reduce_sum(x), tf.cast(y, tf.float64), name="z")
    table = pa.table({"x": [one.tolist() for one in lists], "y": np.arange(10_001)})
    result = tfs.map_rows(total, table)["z"].to_numpy()
    np.testing.assert_allclose(result, [one.sum() + row for row, one in enumerate(lists)], rtol=1e-12)


def test_two_results_of_one_operation_become_columns_by_the_names_of_a_dict():
    with tf.Graph().as_default():
        values, places = tf.nn.top_k(tf.placeholder(tf.float32, [None], "x"), 2)
    result = tfs.map_rows(
        {"best": values, "where": places}, pa.table({"x": pa.array([[1, 3, 2]], pa.list_(pa.float32()))})
    )
    assert result.to_pydict() == {"best": [[3.0, 2.0]], "where": [[1, 2]], "x": [[1.0, 3.0, 2.0]]}


def test_random_numbers_differ_from_row_to_row():
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [], "x")
        noisy = tf.add(x, tf.random.uniform([]), name="z")
    values = tfs.map_rows(noisy, pa.table({"x": np.zeros(50, "f4")}))["z"].to_numpy()
    assert len(set(values)) == 50
    assert ((values >= 0) & (values < 1)).all()
