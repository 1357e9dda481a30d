"""Programs of every kind: tensors, files, traced functions, and plain functions of numpy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow
import torch

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca.errors import ArgumentError, DataError
from orca.tensorframes.frames.adapting import adapt
from orca.tensorframes.matching import bind, feeds_by_name
from orca.tensorframes.programs.capturing import capture

TABLE = pa.table({"x": [1.0, 2.0, 3.0], "y": [10.0, 20.0, 30.0]})


def column(result: pa.Table, name: str = "z") -> list[Any]:
    values: list[Any] = result[name].to_pylist()
    return values


def tier_of(program: Any, table: pa.Table = TABLE) -> str:
    captured, _ = capture(program)
    return bind(captured, feeds_by_name(captured, adapt(table).columns(), {}, rows=True), rows=True).tier


@pytest.fixture
def scaled() -> Any:
    """Return x times a variable, the session that has its value, and the variable."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float64, name="x")
        factor = tf.get_variable("factor", initializer=tf.constant(2.0, tf.float64))
        z = tf.multiply(x, factor, name="z")
        # Nodes that the fetches do not need never matter.
        tf.py_func(lambda value: value, [tf.placeholder(tf.float64, name="unrelated")], tf.float64)
        with tf.Session(graph=graph) as session:
            session.run(factor.initializer)
            session.run(tf.assign(factor, 5.0))
            yield z, session, factor


def test_variables_are_initialized_or_have_the_values_of_a_session(scaled: Any):
    z, session, _ = scaled
    operations = len(z.graph.get_operations())
    assert column(tfs.map_rows(z, TABLE)) == [2.0, 4.0, 6.0]
    assert column(tfs.map_rows(z, TABLE, sess=session)) == [5.0, 10.0, 15.0]
    assert column(tfs.map_blocks(z, TABLE, initial_variables=False)) == [5.0, 10.0, 15.0]
    assert column(tfs.map_blocks("z", TABLE, graph=z.graph)) == [2.0, 4.0, 6.0]
    assert len(z.graph.get_operations()) == operations
    with tf.Session(graph=z.graph) as empty, pytest.raises(ArgumentError, match="no value in the session"):
        tfs.map_rows(z, TABLE, sess=empty)


def test_names_are_looked_up_in_frozen_graphs_and_saved_models(scaled: Any, tmp_path: Path):
    from orca.backends.graph.frozen import freeze

    z, session, _ = scaled
    frozen = tmp_path / "frozen.pb"
    frozen.write_bytes(freeze([z], session).graph)
    assert column(tfs.map_rows("z", TABLE, graph=frozen)) == [5.0, 10.0, 15.0]
    assert column(tfs.map_rows({"renamed": "z:0"}, TABLE, graph=str(frozen)), "renamed") == [5.0, 10.0, 15.0]
    saved = str(tmp_path / "saved")
    tf.saved_model.simple_save(session, saved, {"input": z.graph.get_tensor_by_name("x:0")}, {"scores": z})
    assert column(tfs.map_blocks("z", TABLE.rename_columns(["input", "y"]), graph=saved)) == [5.0, 10.0, 15.0]
    result = tfs.map_rows(["scores"], TABLE, feed_dict={"input": "y"}, graph=saved)
    assert column(result, "scores") == [50.0, 100.0, 150.0]
    with pytest.raises(ArgumentError, match=r"'score' is not an output.*Did you mean 'scores'"):
        tfs.map_rows("score", TABLE, graph=saved)
    with pytest.raises(ArgumentError, match=r"fetches='zz' is not a tensor"):
        tfs.map_rows("zz", TABLE, graph=frozen)
    (tmp_path / "bad.pb").write_text("no graph")
    with pytest.raises(DataError, match="not a frozen graph"):
        tfs.map_rows("z", TABLE, graph=tmp_path / "bad.pb")


def test_a_keras_model_runs_from_its_saved_model_and_inside_of_a_function(tmp_path: Path):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="relu")])
    model.export(str(tmp_path / "model"), verbose=False)
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype("f4")
    table = pa.table({"v": pa.array(rows.tolist(), pa.list_(pa.float32()))})
    expected = model.predict(rows, verbose=0)
    result = tfs.map_blocks(lambda v: {"z": model(v)}, table)
    np.testing.assert_allclose(column(result), expected, rtol=1e-5, atol=1e-6)
    loaded = tensorflow.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    key = next(iter(loaded.structured_outputs))
    port = next(iter(loaded.structured_input_signature[1]))
    result = tfs.map_blocks(key, table, feed_dict={port: "v"}, graph=tmp_path / "model")
    np.testing.assert_allclose(column(result, key), expected, rtol=1e-5, atol=1e-6)


def test_functions_of_each_library_are_recognized_and_vectorized_where_they_can_be():
    two = np.float64(2)

    def with_tensorflow(x, y):
        return {"z": tensorflow.stack([x, y]) * 2}

    def with_torch(x, y):
        import torch

        return {"z": torch.stack([x, y]) * 2}

    def with_numpy(x, y):
        return {"z": np.stack([x, y]) * two}

    def decides(x, y):
        return {"z": torch.stack([x, y]) * 2 if x > 1.5 else torch.stack([x, y]) * 2.0}

    expected = [[2.0, 20.0], [4.0, 40.0], [6.0, 60.0]]
    tiers = {with_tensorflow: "vectorized", with_torch: "vectorized", with_numpy: "row", decides: "row"}
    for function, tier in tiers.items():
        assert column(tfs.map_rows(function, TABLE)) == expected
        assert tier_of(function) == tier
    assert tier_of(lambda x, y: {"z": np.sqrt(x) + 3 * y, "b": x > y}) == "vectorized"
    assert tier_of(lambda x, y: {"z": x if x > y else y}) == "row"
    assert tier_of(lambda x: {"z": x.sum()}, pa.table({"x": [[1.0]]})) == "row"
    vectors = pa.table({"x": [[1.0, 2.0], [3.0, 4.0]]})
    assert column(tfs.map_rows(lambda x: {"z": x * np.array([1, 10])}, vectors)) == [[1.0, 20.0], [3.0, 40.0]]
    assert tier_of(lambda x: {"z": x * np.ones((2, 2))}, vectors) == "row"
    with pytest.raises(ArgumentError, match="uses both tensorflow and torch"):
        tfs.map_rows(lambda x: {"z": tensorflow.add(x, torch.pi), "y": torch.ones(1)}, TABLE)


def test_a_tf_function_keeps_its_signature_and_its_control_flow():
    spec = tensorflow.TensorSpec([], tensorflow.float32)

    @tensorflow.function(input_signature=[spec])
    def steps(x):
        count = 0
        while x < 10.0:
            x = x * 2.0
            count += 1
        return {"z": x, "count": count}

    result = tfs.map_rows(steps, pa.table({"x": pa.array([1, 3], pa.int64())}))
    assert (column(result), column(result, "count")) == ([16.0, 12.0], [4, 2])
    with pytest.raises(DataError, match="takes float32"):
        tfs.map_rows(steps, TABLE)
    weight = tensorflow.Variable(2.0, dtype=tensorflow.float64)
    lazy = capture(lambda x: {"z": x * weight})[0]
    assert lazy.inputs[0].name == "x"
    assert column(tfs.map_blocks(lambda x: {"z": x * weight}, TABLE)) == [2.0, 4.0, 6.0]


def test_constants_feed_switches_and_parameters():
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, name="x")
        train = tf.placeholder(tf.bool, [], "train")
        optional = tf.placeholder_with_default(tf.constant(1.0, tf.float64), [], "optional")
        z = tf.add(tf.cond(train, lambda: x, lambda: -x), optional, name="z")
    assert column(tfs.map_rows(z, TABLE, {train: False})) == [0.0, -1.0, -2.0]
    assert column(tfs.map_blocks(z, TABLE, {train.ref(): True, "optional": 10.0})) == [11.0, 12.0, 13.0]
    assert column(tfs.map_rows(z, TABLE, {train: True, optional: "y"})) == [11.0, 22.0, 33.0]
    with pytest.raises(ArgumentError, match=r"feed_dict\['train'\] has the shape"):
        tfs.map_rows(z, TABLE, {train: [True, False]})
    scale = 3.0
    program = lambda a, factor=scale: {"z": a * factor}  # noqa: E731
    assert column(tfs.map_rows(program, TABLE, {"a": "x"})) == [3.0, 6.0, 9.0]
    assert column(tfs.map_rows(program, TABLE, {"a": "x", "factor": "y"})) == [10.0, 40.0, 90.0]
    assert column(tfs.map_rows(program, TABLE, {"a": "x", "factor": 5})) == [5.0, 10.0, 15.0]


def test_lookup_tables_are_filled_where_the_graph_runs():
    with tf.Graph().as_default():
        keys = tf.constant(["a", "b"])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2])), -1)
        found = tf.identity(table.lookup(tf.placeholder(tf.string, name="word")), name="z")
    words = pa.table({"word": ["b", "?", "a"]})
    for call in (tfs.map_rows, tfs.map_blocks):
        assert column(call(found, words)) == [2, -1, 1]


def test_workers_of_spark_start_with_tensorflow_if_the_driver_has_imported_it():
    from orca.backends.registry import imported

    assert "tensorflow" in imported()


def test_a_program_that_reads_no_column_gives_its_value_to_every_row():
    with tf.Graph().as_default():
        seven = tf.constant([7, 8], name="z")
    assert column(tfs.map_rows(seven, TABLE)) == [[7, 8]] * 3
    assert column(tfs.map_rows(lambda: {"z": 1.5}, TABLE)) == [1.5] * 3


def test_bytes_keep_their_zeros_and_text_stays_text():
    data = pa.table({"b": [b"a\0", b"\xff\0\0"], "s": ["ü", "x"]})
    result = tfs.map_rows(lambda b: {"z": tf.strings.join([b, b"\0"]), "n": tf.strings.length(b)}, data)
    assert column(result) == [b"a\0\0", b"\xff\0\0\0"]
    assert column(result, "n") == [2, 3]
    assert column(tfs.map_blocks(lambda s: {"z": tf.strings.upper(s, encoding="utf-8")}, data)) == ["Ü", "X"]
    assert column(tfs.map_rows(lambda s, b: {"z": s + "!", "y": b + b"\0"}, data), "y") == [b"a\0\0", b"\xff\0\0\0"]


@pytest.mark.parametrize("kind", ["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"])
def test_every_dtype_passes_through_each_library(kind: str):
    values = np.array([0, 1, 1]).astype(kind)
    data = pa.table({"x": pa.array(values)})
    for program in (lambda x: {"z": x}, lambda x: {"z": tf.identity(x)}, lambda x: {"z": torch.clone(x)}):
        for call in (tfs.map_rows, tfs.map_blocks):
            result = call(program, data)
            assert result["z"].type == data["x"].type
            assert column(result) == values.tolist()
