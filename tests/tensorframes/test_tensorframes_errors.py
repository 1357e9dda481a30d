"""What cannot work is refused at the call, with what is wrong, what was received and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca.errors import ArgumentError, ColumnError, DataError
from tests.orca.wrong_values import Call, Case, arguments_of, extra, mistakes


def frame_of() -> pa.Table:
    """Return rows of several types."""
    return pa.table({
        "i": pa.array([1, 2, 3], pa.int32()), "x": [1.0, 2.0, 3.0], "v": [[1.0, 2.0]] * 3, "s": ["a", "b", "c"],
        "day": pa.array([0, 1, 2], pa.date32()),
    })  # fmt: skip


def hole(dtype: Any, name: str, shape: Any = None) -> Any:
    return tf.placeholder(dtype, shape, name)


def python(x: Any) -> Any:
    return tf.py_func(lambda value: value, [x], tf.float64, name="z")


def two_graphs(frame: Any) -> Any:
    one = tf.identity(hole(tf.float64, "x"), name="z")
    with tf.Graph().as_default():
        two = tf.identity(hole(tf.float64, "x"), name="y")
    return tfs.map_rows([one, two], frame)


def total(frame: Any, inputs: list[str], call: Any = tfs.reduce_blocks, **options: Any) -> Any:
    shape = [None] if call is not tfs.reduce_rows else []
    parts = [hole(tf.float64, name, shape) for name in inputs]
    result = tf.reduce_sum(tf.add_n(parts), 0, name="x") if call is not tfs.reduce_rows else tf.add_n(parts, name="x")
    return call(result, frame, **options)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown column": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.float64, "xx"), name="z"), f),
        ColumnError, r"'xx'.*Columns: i, x, v, s, day\. Did you mean 'x'\?",
    ),
    "unknown column in feed_dict": (
        lambda f: tfs.map_rows(lambda a: {"z": a}, f, feed_dict={"a": "vv"}),
        ColumnError, r"feed_dict\['a'\]='vv' is not a column.*Did you mean 'v'\?",
    ),
    "a placeholder that nobody feeds": (
        lambda f: tfs.map_blocks(tf.add(hole(tf.float64, "x"), hole(tf.float64, "keep"), name="z"), f),
        ColumnError, r"Nobody feeds the input 'keep'.*feed_dict=\{\"keep\"",
    ),
    "a result named like a column": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.float64, "x"), name="v"), f),
        ArgumentError, r"result called 'v', but this column already exists.*Columns: i, x, v",
    ),
    "a function's result named like a column": (
        lambda f: tfs.map_rows(lambda x: {"i": x}, f), ArgumentError, r"result called 'i', but this column",
    ),
    "two results of one name": (
        lambda f: tfs.map_rows(list(tf.nn.top_k(hole(tf.float64, "v"), 1)), f),
        ArgumentError, r"Two results are called 'TopKV2'.*tf\.identity",
    ),
    "dtype that loses values": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.float32, "x"), name="z"), f),
        DataError, r"Column 'x' has dtype float64, but the input 'x' takes float32.*cast\(\"float\"\)",
    ),
    "dtype of another kind": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.int64, "s"), name="z"), f),
        DataError, r"Column 's' has dtype string, but the input 's' takes int64.*cast\(\"long\"\)",
    ),
    "a type that is no tensor": (
        lambda f: tfs.map_rows(lambda day: {"z": day}, f), DataError, r"Column 'day' has the type date.*not a tensor",
    ),
    "rank of a block": (
        lambda f: tfs.map_blocks(tf.identity(hole(tf.float64, "v", [None]), name="z"), f),
        DataError, r"Column 'v' has blocks of shape \[\?,\?\], but the input 'v' takes \[\?\]",
    ),
    "rank of a row": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.float64, "x", [2, 2]), name="z"), f),
        DataError, r"Column 'x' has cells of shape \[\], but the input 'x' takes \[2,2\]",
    ),
    "a single value for a block": (
        lambda f: tfs.map_blocks(tf.identity(hole(tf.float64, "x", []), name="z"), f),
        DataError, r"shape \[\], a single value.*\[\?\]\. Use map_rows",
    ),
    "a fixed number of rows": (
        lambda f: tfs.map_blocks(tf.identity(hole(tf.float64, "x", [3]), name="z"), f),
        DataError, r"a fixed number of rows.*\[\?\]",
    ),
    "a scalar without trim": (
        lambda f: tfs.map_blocks(tf.reduce_sum(hole(tf.float64, "x"), name="z"), f),
        ArgumentError, r"result 'z' is a scalar.*trim=True",
    ),
    "tensors of two graphs": (two_graphs, ArgumentError, r"another graph"),
    "py_func": (lambda f: tfs.map_rows(python(hole(tf.float64, "x")), f), ArgumentError, r"Python functions.*py_func"),
    "x_input is missing": (
        lambda f: total(f, ["y_input"]), ArgumentError, r"needs the input 'x_input'; 'x_input' is missing",
    ),
    "x_input is missing in aggregate": (
        lambda f: total(f, ["v_input"], tfs.aggregate, by="s"), ArgumentError, r"'x_input' is missing",
    ),
    "x_2 is missing": (
        lambda f: total(f, ["x_1"], tfs.reduce_rows), ArgumentError, r"'x_1' and 'x_2'; 'x_2' is missing",
    ),
    "an input without result": (
        lambda f: total(f, ["x_input", "i_input"]), ArgumentError, r"input 'i_input', which belongs to none",
    ),
    "a parameter without result": (
        lambda f: tfs.reduce_blocks(lambda x_input, i_input: {"x": x_input.sum(axis=0)}, f),
        ArgumentError, r"'i_input' belongs to the result 'i'",
    ),
    "a reduction of another dtype": (
        lambda f: tfs.reduce_blocks(tf.cast(tf.reduce_sum(hole(tf.float64, "x_input"), 0), tf.int32, name="x"), f),
        ArgumentError, r"result 'x' has dtype int32.*'x_input' has float64",
    ),
    "a reduction of another shape": (
        lambda f: tfs.reduce_blocks(tf.identity(hole(tf.float64, "x_input", [None]), name="x"), f),
        ArgumentError, r"result 'x' has the shape \[\?\], but the cells of its column have \[\]",
    ),
    "an unknown key": (lambda f: total(f, ["x_input"], tfs.aggregate, by="ss"), ColumnError, r"by='ss'.*'s'\?"),
    "no keys": (lambda f: total(f, ["x_input"], tfs.aggregate), ArgumentError, r"aggregate needs the keys"),
    "no dict": (lambda f: tfs.map_rows(lambda x: x + 1, f), ArgumentError, r"expected a dict of columns"),
    "a function that fails": (
        lambda f: tfs.map_rows(lambda x: {"z": x.missing}, f), ArgumentError, r"failed on sample values.*missing",
    ),
    "a function of any columns": (
        lambda f: tfs.map_rows(lambda *x: {"z": x}, f), ArgumentError, r"\*x.*write them out",
    ),
    "an unknown placeholder in feed_dict": (
        lambda f: tfs.map_rows(tf.identity(hole(tf.float64, "x"), name="z"), f, feed_dict={"y": "x"}),
        ArgumentError, r"feed_dict has 'y'.*They need: x",
    ),
    "variables without a session": (
        lambda f: tfs.map_rows(tf.add(hole(tf.float64, "x"), 1.0, name="z"), f, initial_variables=False),
        ArgumentError, r"initial_variables=False.*sess=",
    ),
    "a column that is missing in row": (
        lambda f: tfs.row(f, "days"), ColumnError, r"Could not find column 'days'.*'day'\?",
    ),
    "a shape of another rank": (
        lambda f: tfs.append_shape(f, "v", [2, 2]), DataError, r"'v' has cells of shape \[\?\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_at_the_call(name: str):
    call, error, message = REFUSED[name]
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        call(frame_of())


def test_rows_are_named_where_they_are_wrong():
    table = pa.table({"x": pa.array([[1, 2], [3]])})
    with pytest.raises(DataError, match=r"Column 'x' has arrays of 2 values, but of 1 in row 1"):
        tfs.map_blocks(lambda x: {"z": x}, table)
    nested = pa.table({"x": pa.array([[[1], [2]], [[1], [2, 3]]])})
    with pytest.raises(DataError, match=r"ragged array in row 1.*1 to 2 values"):
        tfs.map_rows(lambda x: {"z": x}, nested)
    deep = pa.table({"x": pa.array([[[1], [2]], [[1], [None]]])})
    with pytest.raises(DataError, match=r"null inside of the array in row 1"):
        tfs.map_rows(lambda x: {"z": x}, deep)
    with pytest.raises(DataError, match=r"has cells of shape \[2\], not \[3\]"):
        tfs.append_shape(pa.table({"x": [[1, 2]]}), "x", [3])
    big = pa.table({"x": pa.array([1, 2**53 + 1])})
    with (
        tf.Graph().as_default(),
        pytest.raises(DataError, match=r"9007199254740993 in row 1, which float64 cannot hold"),
    ):
        tfs.map_rows(tf.identity(hole(tf.float64, "x"), name="z"), big)
    lists = pa.table({"x": pa.array([[1, 2], [3], [4, 5], [2**40, 1]])})
    with tf.Graph().as_default(), pytest.raises(DataError, match=r"Column 'x' has 1099511627776 in row 3"):
        tfs.map_rows(tf.identity(hole(tf.int32, "x"), name="z"), lists)
    with pytest.raises(DataError, match=r"result 'z' is not text in UTF-8 in row 1"):
        tfs.map_rows(lambda x: {"z": tf.strings.substr(x, 0, 1)}, pa.table({"x": ["a", "ü"]}))
    with pytest.raises(DataError, match="no rows"):
        tfs.reduce_rows(lambda x_1, x_2: {"x": x_1 + x_2}, pa.table({"x": pa.array([], pa.int64())}))


TABLE = frame_of()
SHARED = {
    "fetches": extra("no", [], [None], {"a": 5}, choices=True),
    "data": extra([1, 2], np.zeros(3), {"x": [1]}),
    "graph": extra("no.pb", right="None", choices=True),
    "sess": extra("no", right="None"),
    "feed_dict": extra({5: "x"}, {"no": "x"}, "x", right="empty dict"),
    "by": extra([None], [b"x"], {"s"}, right="None", choices=True),
    "col": extra("no", choices=True),
    "shape": extra("ab", [-2], ["a"], [1.5], [True]),
    "block_rows": extra("whole", -1, 2.5, right="None", choices=True),
    "tf_name": extra(right="None"),
}


def call_of(name: str, **right: Any) -> Call:
    function = getattr(tfs, name)
    names = tuple(SHARED)
    return Call(name, function, lambda **changes: function(**{**right, **changes}), {key: SHARED[key] for key in names})


def increased(x: Any) -> Any:
    return {"z": x + 1}


def summed(x_input: Any) -> Any:
    return {"x": x_input.sum(axis=0)}


def added(x_1: Any, x_2: Any) -> Any:
    return {"x": x_1 + x_2}


CALLS = [
    call_of("map_rows", fetches=increased, data=TABLE),
    call_of("map_blocks", fetches=increased, data=TABLE),
    call_of("reduce_rows", fetches=added, data=TABLE),
    call_of("reduce_blocks", fetches=summed, data=TABLE),
    call_of("aggregate", fetches=summed, data=TABLE, by="s"),
    call_of("analyze"),
    call_of("print_schema"),
    call_of("append_shape", data=TABLE, col="v", shape=[2]),
    call_of("block", data=TABLE, col="v"),
    call_of("row", data=TABLE, col="v"),
]


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_a_wrong_value_of_any_argument_is_refused_by_name(cases: list[Case]):
    assert cases
    with tf.Graph().as_default():
        assert mistakes(cases) == []


def test_every_public_call_has_cases():
    assert {call.name for call in CALLS} == set(tfs.__all__)


def test_pandas_columns_that_cannot_be_tensors_are_named_only_if_they_are_used():
    frame = pd.DataFrame({"x": [1.0, 2.0], "odd": [object(), 1]})
    assert tfs.map_rows(lambda x: {"z": x + 1}, frame)["z"].tolist() == [2.0, 3.0]
    with pytest.raises(DataError, match="Column 'odd'"):
        tfs.map_rows(lambda odd: {"z": odd}, frame)
