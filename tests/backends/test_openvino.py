"""OpenVINO estimators: kinds of data, file formats, compilation and error messages."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import openvino
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, init_orca_context
from orca.backends.openvino.replica import OpenvinoReplica
from orca.context import Context
from orca.core.machine import usable_cpus
from orca.data import read_images
from orca.errors import ArgumentError, ColumnError, DataError, NotFittedError
from orca.shards.shard_formats import arrow_column
from tests.backends.openvino_models import dense, dense_result, image, image_result, two, two_result
from tests.programs import kill_me_once

x = np.random.default_rng(0).normal(size=(18, 6))
expected = dense_result(x)
uneven = np.split(x, [7, 8, 8, 13])  # 7, 1, 0, 5 and 5 rows


@pytest.fixture
def path(tmp_path):
    return dense(tmp_path / "dense.xml")


def close(output, reference=expected):
    np.testing.assert_allclose(np.stack(list(output)), reference, atol=1e-5)


def columns(frame):
    return pa.table({"features": arrow_column(frame), "id": np.arange(len(frame))})


# The same results from every kind of data ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_arrays_and_frames_in_one_process_and_in_several(local: Context, path, workers):
    est = Estimator.from_openvino(model_path=path, workers=workers)
    close(est.predict(x, batch_size=4))
    close(est.predict({"features": x}))
    close(est.predict([x]))
    close(est.predict(columns(x), output_cols="score").column("score").to_pylist())
    numbers = pd.DataFrame(x, columns=list("abcdef"))
    close(est.predict(numbers, feature_cols=list("abcdef"))["prediction"])


def test_every_kind_of_data_gives_the_same_results_on_every_runtime(context: Context, path):
    est = Estimator.from_openvino(model_path=path, workers=2)
    close(est.predict(x, batch_size=4))
    shards = est.predict(XShards.from_shards([{"x": part, "id": part[:, 0]} for part in uneven]), batch_size=3)
    assert shards.shard_rows() == [7, 1, 0, 5, 5]
    rows = shards.to_numpy()
    close(rows["prediction"])
    np.testing.assert_array_equal(rows["id"], x[:, 0])
    frame = pd.DataFrame({"features": list(x), "id": np.arange(18)})
    predicted = est.predict(frame, batch_size=4)
    assert list(predicted.columns) == ["features", "id", "prediction"]
    close(predicted["prediction"])
    assert predicted["id"].tolist() == list(range(18))


@pytest.mark.ray
def test_a_ray_dataset_of_uneven_blocks_comes_back_in_order(ray_cluster, path):
    import ray

    init_orca_context(runtime="ray", cores=4)
    dataset = ray.data.from_arrow([columns(part).set_column(1, "id", pa.array(part[:, 0])) for part in uneven])
    frame = Estimator.from_openvino(model_path=path).predict(dataset, batch_size=2).to_pandas()
    assert frame["id"].tolist() == x[:, 0].tolist()
    close(frame["prediction"])


def spark_frame(session):
    """The rows in partitions of 7, 1, 0, 5 and 5."""
    numbers = iter(range(18))
    parts = [[(row.tolist(), next(numbers)) for row in part] for part in uneven]
    rows = session.sparkContext.parallelize(parts, 5).flatMap(lambda part: part)
    return session.createDataFrame(rows, "features array<double>, id long")


@pytest.mark.spark
def test_a_spark_frame_of_uneven_partitions_comes_back_in_order(spark_session, path):
    init_orca_context(runtime="spark", cores=4)
    frame = spark_frame(spark_session)
    assert frame.rdd.getNumPartitions() == 5
    predicted = Estimator.from_openvino(model_path=path).predict(frame, batch_size=2)
    assert predicted.columns == ["features", "id", "prediction"]
    rows = predicted.collect()
    assert [row.id for row in rows] == list(range(18))
    close([row.prediction for row in rows])
    with pytest.raises(ColumnError, match="imgae"):
        Estimator.from_openvino(model_path=path).predict(frame, feature_cols=["imgae"])
    short = spark_session.createDataFrame(columns(x[:, :5]))
    with pytest.raises(DataError, match=r"'features' \[\?, 6\] does not take rows of shape \[5\]"):
        Estimator.from_openvino(model_path=path).predict(short)


def test_inputs_match_by_name_or_order_and_outputs_keep_their_names(local: Context, tmp_path):
    zeta, alpha = np.random.default_rng(1).normal(size=(9, 2)), np.random.default_rng(2).normal(size=(9, 3))
    reference = two_result(zeta, alpha)
    est = Estimator.from_openvino(model_path=two(tmp_path / "two.xml"))
    for data in ([zeta, alpha], (zeta, alpha), {"alpha": alpha, "zeta": zeta, "more": alpha}):
        predicted = est.predict(data, batch_size=4)
        assert list(predicted) == ["wide", "apex"]
        for name in reference:
            np.testing.assert_allclose(predicted[name], reference[name], atol=1e-5)
    frame = pd.DataFrame({"alpha": list(alpha), "zeta": list(zeta)})
    for cols in (None, ["alpha", "zeta"], ["zeta", "alpha"]):
        predicted = est.predict(frame, feature_cols=cols)
        assert list(predicted.columns) == ["alpha", "zeta", "wide", "apex"]
        np.testing.assert_allclose(np.stack(predicted["wide"]), reference["wide"], atol=1e-5)
    renamed = frame.rename(columns={"alpha": "second", "zeta": "first"})
    predicted = est.predict(renamed, feature_cols=["first", "second"], output_cols=["w", "a"])
    np.testing.assert_allclose(predicted["a"], reference["apex"], atol=1e-5)
    shards = est.predict(XShards.partition({"x": {"alpha": alpha, "zeta": zeta}}, num_shards=2)).to_numpy()
    np.testing.assert_allclose(shards["apex"], reference["apex"], atol=1e-5)


@pytest.mark.spark
def test_a_spark_frame_gets_one_column_per_output(spark_session, tmp_path):
    init_orca_context(runtime="spark", cores=4)
    zeta, alpha = np.random.default_rng(1).normal(size=(9, 2)), np.random.default_rng(2).normal(size=(9, 3))
    reference = two_result(zeta, alpha)
    est = Estimator.from_openvino(model_path=two(tmp_path / "two.xml"))
    frame = spark_session.createDataFrame(pa.table({"alpha": arrow_column(alpha), "zeta": arrow_column(zeta)}))
    predicted = est.predict(frame).toPandas()
    assert list(predicted.columns) == ["alpha", "zeta", "wide", "apex"]
    order = [int(np.abs(alpha[:, 0] - row[0]).argmin()) for row in predicted["alpha"]]
    np.testing.assert_allclose(np.stack(predicted["wide"]), reference["wide"][order], atol=1e-5)
    named = est.predict(frame, output_cols=["w", "a"]).toPandas()
    np.testing.assert_allclose(named["a"], reference["apex"][order], atol=1e-5)
    empty = est.predict(frame.limit(0))
    assert empty.columns == ["alpha", "zeta", "wide", "apex"]
    assert empty.count() == 0


def test_a_fixed_batch_takes_any_number_of_rows_without_compiling_again(local: Context, tmp_path):
    est = Estimator.from_openvino(
        model_path=dense(tmp_path / "fixed.xml", rows=4), config={"cache_dir": str(tmp_path / "blobs")}
    )
    for rows in (18, 4, 1, 3, 0):
        output = est.predict(x[:rows], batch_size=5)
        assert output.shape == (rows, 5)
        np.testing.assert_allclose(output, expected[:rows], atol=1e-5)
    assert len(list((tmp_path / "blobs").rglob("*.blob"))) == 1
    close(Estimator.from_openvino(model_path=str(tmp_path / "fixed.xml"), shape=(None, 6)).predict(x))


def test_data_without_rows_gives_outputs_of_the_right_shape(local: Context, path):
    est = Estimator.from_openvino(model_path=path)
    assert est.predict(x[:0]).shape == (0, 5)
    assert len(est.predict(pd.DataFrame({"features": list(x)}).iloc[:0])) == 0


# Images and layouts --------------------------------------------------------------------------------------------------


def test_images_are_transposed_to_the_layout_of_the_model(local: Context, tmp_path):
    from PIL import Image

    pictures = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3)).astype("u1")
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    model = image(tmp_path / "image.xml")
    reference = image_result(pictures.transpose(0, 3, 1, 2))
    est = Estimator.from_openvino(model_path=model, layout="NHWC")
    predicted = est.predict(read_images(str(tmp_path / "*.png"))).to_numpy()
    assert list(predicted) == ["image", "path", "prediction"]
    np.testing.assert_allclose(predicted["prediction"], reference, rtol=1e-5)
    named = est.predict(read_images(str(tmp_path / "*.png")), feature_cols=["image"]).to_numpy()
    np.testing.assert_allclose(named["prediction"], reference, rtol=1e-5)
    for layout in ({"image": "NHWC"}, "NHWC->NCHW"):
        predicted = Estimator.from_openvino(model_path=model, layout=layout).predict(pictures)
        np.testing.assert_allclose(predicted, reference, rtol=1e-5)
    with pytest.raises(DataError, match='layout="NHWC"'):
        Estimator.from_openvino(model_path=model).predict(np.zeros((2, 8, 8, 3)))
    with pytest.raises(ArgumentError, match="same letters"):
        Estimator.from_openvino(model_path=model, layout="NHWD")


def test_mean_and_scale_are_part_of_the_model(local: Context, tmp_path):
    data = np.random.default_rng(0).normal(size=(5, 3, 8, 8))
    model = image(tmp_path / "image.xml")
    est = Estimator.from_openvino(model_path=model, config={"mean": [1, 2, 3], "scale": 2})
    reference = image_result((data - np.array([1, 2, 3]).reshape(1, 3, 1, 1)) / 2)
    np.testing.assert_allclose(est.predict(data), reference, atol=1e-5)
    flat = est.predict(pd.DataFrame({"image": list(data.reshape(5, -1))}))
    np.testing.assert_allclose(np.stack(flat["prediction"]), reference, atol=1e-5)


# Files and model objects ---------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return torch.relu(self.last(x)) + x[:, :1]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_files_of_other_frameworks_and_model_objects(local: Context, net, tmp_path):
    reference = net(torch.from_numpy(x).float()).detach().numpy()
    est = Estimator.from_torch(model=net)
    for kind, more in {
        "onnx": {},
        "openvino": {},
        "exported_program": {},
        "torchscript": {"shape": (None, 6)},
    }.items():
        file = est.export(kind, str(tmp_path / "net"), x[:2])
        converted = Estimator.from_openvino(model_path=file, **more)
        assert converted.spec.inputs[0].shape == (None, 6), kind
        close(converted.predict(x, batch_size=5), reference)
    for more in ({"shape": (None, 6)}, {"example": x[:2].astype("f4")}, {"shape": (4, 6)}):
        close(Estimator.from_openvino(model=net, **more).predict(x), reference)
    close(Estimator.from_openvino(model=openvino.Core().read_model(str(tmp_path / "net.xml"))).predict(x), reference)
    with pytest.raises(ArgumentError, match="shape="):
        Estimator.from_openvino(model=net)
    with pytest.raises(ArgumentError, match="received a dict"):
        Estimator.from_openvino(model={})
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(DataError, match=r"weights.pt.*no TorchScript"):
        Estimator.from_openvino(model_path=tmp_path / "weights.pt")


def test_a_model_at_a_url_is_fetched(local: Context, path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(path, "/models/dense.xml")
    memory.put(path[:-4] + ".bin", "/models/dense.bin")
    close(Estimator.from_openvino(model_path="memory://models/dense.xml").predict(x))
    with pytest.raises(DataError, match="memory://models/none.xml"):
        Estimator.from_openvino(model_path="memory://models/none.xml")


def test_save_and_export_write_equal_models(local: Context, path, tmp_path):
    est = Estimator.from_openvino(model_path=path)
    close(Estimator.from_openvino(model_path=est.save(str(tmp_path / "again.xml"))).predict(x))
    close(Estimator.from_openvino(model_path=est.export("openvino", str(tmp_path / "more"))).predict(x))
    assert est.get_model().get_friendly_name() == "dense"
    with pytest.raises(ArgumentError, match=".xml"):
        est.save(str(tmp_path / "folder"))
    with pytest.raises(ArgumentError, match="from_openvino"):
        est.load(path)


def test_set_params_and_clone_read_the_model_again(local: Context, path, tmp_path):
    from sklearn.base import clone

    est = clone(Estimator.from_openvino(model_path=path))
    close(est.predict(x))
    est.set_params(model_path=dense(tmp_path / "fixed.xml", rows=2))
    assert est.spec.fixed_batch == 2
    close(est.predict(x))


# Compilation ---------------------------------------------------------------------------------------------------------


def loaded_from_cache(replica):
    return replica.compiled.get_property("LOADED_FROM_CACHE")


def test_the_second_process_loads_the_compiled_model_of_the_first(local: Context, path, tmp_path):
    spec = Estimator.from_openvino(model_path=path, config={"cache_dir": str(tmp_path / "blobs")}).spec
    # As in another process: the model arrives as bytes, and the file it was read from is gone.
    received = pickle.loads(pickle.dumps(spec))
    os.unlink(path)
    first, second = OpenvinoReplica(received, 1), OpenvinoReplica(pickle.loads(pickle.dumps(received)), 1)
    assert not loaded_from_cache(first)
    assert loaded_from_cache(second)
    close(second.predict_step(x))


def test_the_config_reaches_openvino(local: Context, path):
    config = {"num_streams": 1, "performance_hint": "latency", "num_requests": 3, "ENABLE_HYPER_THREADING": False}
    replica = OpenvinoReplica(Estimator.from_openvino(model_path=path, config=config).spec, 1)
    property_of = replica.compiled.get_property
    assert str(property_of("PERFORMANCE_HINT")).upper().endswith("LATENCY")
    assert property_of("INFERENCE_NUM_THREADS") == 1
    assert property_of("NUM_STREAMS") == 1
    assert property_of("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    assert len(replica._queue) == 3
    # A process that uses only some of the cores does not pin its threads.
    assert property_of("ENABLE_CPU_PINNING") == (usable_cpus() == 1)
    optimal = OpenvinoReplica(Estimator.from_openvino(model_path=path).spec, 2)
    # Two more than are computed at once, so that the model never waits for Python.
    assert len(optimal._queue) == optimal.compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") + 2


def test_explain_shows_inputs_outputs_and_device(local: Context, path):
    text = Estimator.from_openvino(model_path=path).explain()
    assert "features [?, 6] float32" in text
    assert "score [?, 5] float32" in text
    assert "on CPU" in text
    assert "rendezvous" not in text


# Errors --------------------------------------------------------------------------------------------------------------


def test_training_and_scoring_are_refused(local: Context, path):
    est = Estimator.from_openvino(model_path=path)
    for call in (lambda: est.fit(x, x), lambda: est.evaluate(x, x), lambda: est.score(x, x)):
        with pytest.raises(ArgumentError, match=r"OpenVINO only predicts: \w+\(\) is not supported"):
            call()
    with pytest.raises(NotFittedError):
        est.get_state_dict()


def test_broken_files_are_reported_before_launch(local: Context, path, tmp_path):
    def of(file, **more):
        return Estimator.from_openvino(model_path=file, **more)

    text = Path(path).read_text()
    cases = {
        "absent": (None, None, r"absent.xml' does not exist"),
        "lonely": (text, None, r"lonely.bin' is missing: the weights of model_path="),
        "cut": (text[: len(text) // 2], b"", r"cut.xml' cannot be read.*damaged or truncated"),
        "strange": (
            text.replace('type="Tanh"', 'type="Frobnicate"'),
            Path(path[:-4] + ".bin").read_bytes(),
            "Frobnicate",
        ),
    }
    for name, (xml, weights, message) in cases.items():
        file = tmp_path / f"{name}.xml"
        if xml is not None:
            file.write_text(xml)
        if weights is not None:
            file.with_suffix(".bin").write_bytes(weights)
        with pytest.raises(DataError, match=message):
            of(file)
    (tmp_path / "plain").mkdir()
    with pytest.raises(DataError, match=r"saved_model.pb"):
        of(tmp_path / "plain")
    (tmp_path / "words.txt").write_text("no model")
    with pytest.raises(DataError, match=r"words.txt' cannot be read"):
        of(tmp_path / "words.txt")


def test_an_unknown_operation_of_onnx_is_named(local: Context, tmp_path):
    import onnx
    from onnx import TensorProto, helper

    def tensor(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])

    graph = helper.make_graph([helper.make_node("Frobnicate", ["a"], ["b"])], "g", [tensor("a")], [tensor("b")])
    onnx.save(helper.make_model(graph), str(tmp_path / "strange.onnx"))
    with pytest.raises(DataError, match=r"strange.onnx.*Frobnicate"):
        Estimator.from_openvino(model_path=tmp_path / "strange.onnx")


def test_wrong_arguments_are_reported_by_name(local: Context, path):
    def of(**more):
        return Estimator.from_openvino(model_path=path, **more)

    for more, message in (
        ({"config": {"devcie": "CPU"}}, "Did you mean 'device'"),
        ({"config": {"num_streams": 0}}, "num_streams=0"),
        ({"config": {"precision": "f8"}}, "precision='f8'"),
        ({"config": {"performance_hint": "fast"}}, "performance_hint='fast'"),
        ({"shape": (None, 7)}, "shape="),
        ({"shape": {"featrues": (None, 6)}}, "Did you mean 'features'"),
        ({"shape": (None, "6")}, "one number per axis"),
        ({"layout": "NHWC"}, "fits no input"),
        ({"layout": {"featrues": "NC"}}, "Did you mean 'features'"),
        ({"model": 3}, "either a file"),
    ):
        with pytest.raises(ArgumentError, match=message):
            of(**more)
    with pytest.raises(ArgumentError, match=r"device='NPU', which is not on this machine. It has: .*CPU"):
        of(config={"device": "NPU"}).predict(x)
    with pytest.raises(ArgumentError, match="accelerator='onnx'"):
        of().predict(x, accelerator="onnx")


def test_wrong_data_is_reported_before_workers_start(local: Context, path, tmp_path):
    est = Estimator.from_openvino(model_path=path, workers=3)
    frame = pd.DataFrame({"features": list(x), "id": np.arange(18)})
    for data, message in (
        (x[:, :5], r"'features' \[\?, 6\] does not take rows of shape \[5\]"),
        (x[0], "does not take rows"),
        ([x, x], "received 2 arrays"),
        ({"features": x.astype(str)}, "takes numbers"),
        (XShards.partition({"x": x[:, :4]}), r"shape \[4\]"),
        (XShards.partition({"featrues": x, "id": x}), "Did you mean 'featrues'"),
    ):
        with pytest.raises(DataError, match=message):
            est.predict(data)
    with pytest.raises(ColumnError, match="Did you mean 'features'"):
        est.predict(frame, feature_cols=["featrues"])
    with pytest.raises(ColumnError, match="Did you mean 'features'"):
        Estimator.from_openvino(model_path=path).predict(frame, feature_cols=["featrues"])
    with pytest.raises(DataError, match="two.* inputs|2 inputs"):
        Estimator.from_openvino(model_path=two(tmp_path / "two.xml")).predict(x)
    assert not local._gangs._gangs


# Lost workers --------------------------------------------------------------------------------------------------------


def kill_at_six(shard, mark):
    if shard["id"][0] == 6:
        kill_me_once(mark)
    return shard


@pytest.mark.ray
def test_a_killed_ray_worker_neither_loses_nor_repeats_a_row(ray_cluster, path, tmp_path):
    init_orca_context(runtime="ray", cores=4)
    mark = str(tmp_path / "killed")
    shards = XShards.partition({"x": x, "id": np.arange(18)}, num_shards=6)
    est = Estimator.from_openvino(model_path=path)
    # The prediction runs in the same task, so the worker dies with the model loaded.
    rows = est.predict(shards).transform_shard(kill_at_six, mark).to_numpy()
    assert Path(mark).exists()
    np.testing.assert_array_equal(rows["id"], np.arange(18))
    close(rows["prediction"])
