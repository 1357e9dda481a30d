"""Pipelines from TensorFlow graphs: what cannot work is reported by name, at the call."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import orca.tf1 as tf
from orca.bigdl.pipeline import Pipeline, load_pipeline
from orca.bigdl.util.tf_utils import dump_model
from orca.context import Context
from orca.errors import ArgumentError, DataError, UnknownArgumentError
from tests.backends.pipeline_graphs import BATCH, dump, fixed_queue, parse_bytes
from tests.orca.wrong_values import Call, Case, arguments_of, extra, mistakes

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("files") / "rows.bin"
    path.write_bytes(b"".join(np.int32(row).tobytes() + bytes(64) for row in range(20)))
    return [str(path)]


@pytest.fixture(scope="module")
def dumped(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    dump(fixed_queue, files, str(folder))
    return folder


def built(folder: Path, build: Callable[[], Any]) -> Pipeline:
    """Dump a graph whose result is called "rows", and load it."""
    with tf.Graph().as_default() as graph:
        tf.identity(build(), "rows")
        dump_model(folder, graph)
    return load_pipeline(folder)


def queue_of(files: list[str], reader: Any) -> Any:
    return reader.read(tf.train.string_input_producer(files))[1]


def test_a_missing_node_is_named_with_the_nearest(dumped: Path):
    with pytest.raises(ArgumentError, match=r"nodes='net/feature' is not a node .* nearest names are: net/features"):
        load_pipeline(dumped).features(["net/feature"])


def test_an_operation_without_a_result_is_refused(dumped: Path):
    with pytest.raises(ArgumentError, match=r"batch/fifo_queue_Close'.* without a result"):
        load_pipeline(dumped).features("batch/fifo_queue_Close")


def test_a_moved_file_is_named(dumped: Path, files: list[str]):
    moved = files[0] + ".moved"
    shutil.move(files[0], moved)
    try:
        with pytest.raises(DataError, match=r"rows\.bin' does not exist.*input_producer'.*Pass files="):
            load_pipeline(dumped).features("ids")
    finally:
        shutil.move(moved, files[0])
    with pytest.raises(DataError, match="files='/no/such.bin' does not exist"):
        load_pipeline(dumped).features("ids", files="/no/such.bin")


def test_a_missing_variable_is_named_with_the_nearest(dumped: Path, tmp_path: Path):
    values = load_file(dumped / "model.bin")
    kernel = values.pop("dense/kernel")
    save_file({**values, "dense/kernels": kernel}, tmp_path / "model.bin")
    with pytest.raises(DataError, match=r"no value for the variable 'dense/kernel'.*nearest names are: dense/kernels"):
        load_pipeline(dumped / "model.pb", tmp_path / "model.bin").features("net/features")
    # What does not need the variable is computed.
    assert len(load_pipeline(dumped / "model.pb", tmp_path / "model.bin").features("ids", num_shards=1)) == 20


def test_a_variable_of_another_shape_is_refused(dumped: Path, tmp_path: Path):
    values = load_file(dumped / "model.bin")
    save_file({**values, "dense/bias": np.zeros(3, "f4")}, tmp_path / "model.bin")
    with pytest.raises(DataError, match=r"shape \(3,\) for the variable 'dense/bias'; in the graph it has \(7,\)"):
        load_pipeline(dumped / "model.pb", tmp_path / "model.bin").features("net/features")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"\xac\xed\x00\x05", "Java's serialization"), (b"no", "cannot be read")],
)
def test_files_that_are_not_a_model_are_named(dumped: Path, tmp_path: Path, content: bytes | None, message: str):
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"model.bin.* {message}"):
        load_pipeline(dumped / "model.pb", path)
    with pytest.raises(DataError, match="model_pb=.*does not exist"):
        load_pipeline(tmp_path / "model.pb")


def test_an_unknown_reader_is_named(files: list[str], tmp_path: Path):
    pipeline = built(tmp_path, lambda: queue_of(files, tf.IdentityReader()))
    with pytest.raises(ArgumentError, match="'IdentityReaderV2' is a IdentityReaderV2, which is not supported"):
        pipeline.features("rows")


def test_an_unknown_queue_is_named(files: list[str], tmp_path: Path):
    def padded() -> Any:
        record = queue_of(files, tf.FixedLengthRecordReader(68))
        return tf.train.batch([parse_bytes(record)[0]], BATCH, dynamic_pad=True)

    with pytest.raises(ArgumentError, match="padding_fifo_queue' is a PaddingFIFOQueueV2, which is not supported"):
        built(tmp_path, padded).features("rows")


def test_a_placeholder_without_data_is_named_and_can_be_fed(files: list[str], tmp_path: Path):
    def switched() -> Any:
        _, row = fixed_queue(files)
        return tf.cond(tf.placeholder(tf.bool, [], "is_training"), lambda: row + 100, lambda: row)

    pipeline = built(tmp_path, switched)
    with pytest.raises(ArgumentError, match="depends on the placeholder 'is_training', for which there is no data"):
        pipeline.features("rows")
    with pytest.raises(ArgumentError, match="feed_dict.*'is_trainin'.*nearest names are: is_training"):
        pipeline.features("rows", feed_dict={"is_trainin": False})
    with pytest.raises(ArgumentError, match=r"feed_dict\['is_training'\]='no': expected bool"):
        pipeline.features("rows", feed_dict={"is_training": "no"})
    rows = pipeline.features("rows", feed_dict={"is_training": False}, num_shards=1).to_numpy()["rows"]
    assert rows.tolist() == list(range(20))


def test_rows_without_files_are_refused(tmp_path: Path):
    def in_memory() -> Any:
        return tf.data.make_one_shot_iterator(tf.data.Dataset.range(5).batch(2)).get_next()

    with pytest.raises(ArgumentError, match="No list of files found: the tf.data pipeline of 'IteratorGetNext'"):
        built(tmp_path, in_memory).features("rows")
    with pytest.raises(ArgumentError, match="'rows' depends on nothing that the graph reads"):
        built(tmp_path, lambda: tf.constant([1.0])).features("rows")


def test_file_names_that_have_to_be_fed_are_named(tmp_path: Path):
    def fed() -> Any:
        data = tf.data.TFRecordDataset(tf.placeholder(tf.string, [None], "names"))
        return tf.data.make_initializable_iterator(data.batch(2)).get_next()

    with pytest.raises(ArgumentError, match="No list of files found.*placeholder 'names'.*Pass files="):
        built(tmp_path, fed).features("rows")


def test_python_functions_are_refused(files: list[str], tmp_path: Path):
    pipeline = built(tmp_path, lambda: tf.py_func(lambda ids: ids, [fixed_queue(files)[1]], tf.int64))
    with pytest.raises(ArgumentError, match="'PyFunc' calls a Python function"):
        pipeline.features("rows")


def test_a_result_without_rows_is_refused(files: list[str], tmp_path: Path):
    pipeline = built(tmp_path, lambda: tf.reduce_mean(fixed_queue(files)[0]))
    with pytest.raises(ArgumentError, match=r"'rows' has the shape \(\), but the graph makes batches"):
        pipeline.features("rows")


def test_two_places_where_records_enter_are_refused(files: list[str], tmp_path: Path):
    pipeline = built(tmp_path, lambda: fixed_queue(files)[1] + fixed_queue(files)[1])
    with pytest.raises(ArgumentError, match="in several places, at batch"):
        pipeline.features("rows")


def test_dump_refuses_what_it_cannot_write(tmp_path: Path):
    with tf.Graph().as_default() as graph:
        tf.get_variable("weight", [2])
        with tf.Session() as session, pytest.raises(ArgumentError, match="'weight' has no value in sess="):
            dump_model(tmp_path, graph, session)
    with pytest.raises(ArgumentError, match="graph= has no operation"):
        dump_model(tmp_path, tf.Graph())
    with pytest.raises(ArgumentError, match="graph=3: expected"):
        dump_model(tmp_path, 3)
    with tf.Session(graph=tf.Graph()) as other, pytest.raises(ArgumentError, match="another graph"):
        dump_model(tmp_path, graph, other)
    with pytest.raises(DataError, match="is not a checkpoint"):
        dump_model(tmp_path, graph, ckpt_file=tmp_path / "none")


def test_dump_takes_the_values_of_a_checkpoint(tmp_path: Path):
    with tf.Graph().as_default() as graph:
        weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer())
        with tf.Session() as session:
            session.run(weight.assign([3.0, 4.0]))
            path = tf.train.Saver().save(session, str(tmp_path / "ckpt"))
    dump_model(tmp_path / "initial", graph)
    dump_model(tmp_path / "restored", graph, ckpt_file=path)
    assert load_file(tmp_path / "initial" / "model.bin")["weight"].tolist() == [1, 1]
    assert load_file(tmp_path / "restored" / "model.bin")["weight"].tolist() == [3, 4]


with tf.Graph().as_default() as GRAPH:
    tf.constant([1.0], name="rows")


@functools.cache
def constant() -> str:
    """Return a folder with a graph that reads nothing."""
    folder = tempfile.mkdtemp()
    dump_model(folder, GRAPH)
    return folder


CALLS = [
    Call(
        "features",
        Pipeline.features,
        lambda **changes: Pipeline(GRAPH.as_graph_def(), {}).features(**{"nodes": "rows", **changes}),
        {
            "nodes": extra([3], {"x": 3}, {3: "rows"}, ["rows", "rows"], [""], choices=True),
            "files": extra("/no/such.bin", [None], choices=True),
            "feed_dict": extra({"rows": 1}, {5: 1}),
            "num_shards": extra("2"),
        },
    ),
    Call(
        "load_pipeline",
        load_pipeline,
        lambda **changes: load_pipeline(**{"model_pb": constant(), **changes}),
        {"model_pb": extra(choices=True), "model_bin": extra(choices=True)},
    ),
    Call(
        "dump_model",
        dump_model,
        lambda **changes: dump_model(**{"path": constant(), "graph": GRAPH, **changes}),
        {"graph": extra(right="None"), "sess": extra(right="None"), "ckpt_file": extra(choices=True)},
    ),
]


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_wrong_arguments_are_refused(cases: list[Case]):
    assert mistakes(cases) == []


def test_unknown_arguments_are_named(dumped: Path):
    with pytest.raises(UnknownArgumentError, match="Did you mean 'num_shards'"):
        load_pipeline(dumped).features("ids", num_shard=2)
    with pytest.raises(ArgumentError, match="model_pb=5"):
        load_pipeline(5)


def test_the_names_in_a_graph_can_be_listed(local: Context, dumped: Path):
    pipeline = load_pipeline(dumped)
    assert "net/features" in pipeline.nodes
    assert "dense/kernel" in pipeline.variables
    assert repr(pipeline).startswith("<Pipeline: ")
