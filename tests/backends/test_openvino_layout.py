"""The layout of data for OpenVINO: images give the same results in every form."""

from __future__ import annotations

import numpy as np
import openvino
import openvino.opset13 as ops
import pandas as pd
import pyarrow as pa
import pytest

from orca import Estimator, XShards, init_orca_context
from orca.context import Context
from orca.errors import DataError
from orca.shards.columns import arrow_to_numpy
from tests.backends.openvino_models import image, image_result

pictures = np.random.default_rng(0).normal(size=(12, 8, 6, 3)).astype("f4")  # NHWC
expected = image_result(pictures.transpose(0, 3, 1, 2))


def tensors(array):
    """Return a table with a column of Arrow tensors."""
    return pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(array)})


@pytest.fixture
def est(tmp_path):
    x = ops.parameter([-1, 3, 8, 6], np.float32, name="image")
    model = openvino.Model([ops.reduce_mean(ops.multiply(x, ops.constant(np.float32(2))), [2, 3], False)], [x], "image")
    model.inputs[0].tensor.set_names({"image"})
    openvino.save_model(model, str(tmp_path / "image.xml"), compress_to_fp16=False)
    return Estimator.from_openvino(model_path=tmp_path / "image.xml", layout="NHWC")


def close(predicted):
    np.testing.assert_allclose(np.stack(list(predicted)), expected, atol=1e-5)


def test_flat_rows_and_tensors_have_the_layout_of_the_data(local: Context, est):
    close(est.predict(pictures))
    close(est.predict(pictures.reshape(12, -1)))
    for column in (list(pictures.reshape(12, -1)), list(pictures)):
        close(est.predict(pd.DataFrame({"image": column}))["prediction"])
    table = tensors(pictures)
    close(est.predict(table).column("prediction").to_pylist())
    close(est.predict(table, batch_size=1).column("prediction").to_pylist())  # tables in pieces
    shards = est.predict(XShards.partition(table, num_shards=3), feature_cols="image")
    close(shards.transform_shard(lambda part: part.to_pandas()["prediction"]).to_numpy())


def test_batches_of_images_are_transposed_too(local: Context, est, tmp_path):
    predicted = est.predict(pictures.reshape(4, 3, 8, 6, 3))
    np.testing.assert_allclose(predicted, expected.reshape(4, 3, 3), atol=1e-5)
    fixed = Estimator.from_openvino(model_path=tmp_path / "image.xml", layout="NHWC", shape=(2, 3, 8, 6))
    for several in (2, 3):
        predicted = fixed.predict(pictures.reshape(-1, several, 8, 6, 3))
        np.testing.assert_allclose(predicted, expected.reshape(-1, several, 3), atol=1e-5)


def test_rows_that_do_not_fit_the_layout_are_refused(local: Context, est, tmp_path):
    with pytest.raises(DataError, match=r"\[3, 8, 6\].*Expected \[\?, 8, 6, 3\]"):
        est.predict(tensors(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))))
    last = Estimator.from_openvino(model_path=tmp_path / "image.xml", layout="CHWN->NCHW")
    with pytest.raises(DataError, match="does not start with the row axis"):
        last.predict(pictures.transpose(3, 1, 2, 0))
    predicted = last.predict(pictures.transpose(3, 1, 2, 0)[None])
    np.testing.assert_allclose(predicted, expected[None], atol=1e-5)


def test_a_missing_axis_of_length_one_is_added(local: Context, tmp_path):
    gray = Estimator.from_openvino(model_path=image(tmp_path / "gray.xml", channels=1))
    rows = np.random.default_rng(0).normal(size=(5, 8, 8)).astype("f4")
    np.testing.assert_allclose(gray.predict(rows), image_result(rows[:, None]), atol=1e-5)
    predicted = gray.predict(tensors(rows)).column("prediction").to_pylist()
    np.testing.assert_allclose(predicted, image_result(rows[:, None]), atol=1e-5)


def test_arrow_tensors_keep_their_shape():
    column = tensors(pictures).column("image")
    np.testing.assert_array_equal(arrow_to_numpy(column, "image"), pictures)
    np.testing.assert_array_equal(arrow_to_numpy(column.slice(5, 3), "image"), pictures[5:8])
    assert arrow_to_numpy(column.slice(0, 0), "image").shape == (0, 8, 6, 3)
    transposed = pictures.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(arrow_to_numpy(tensors(transposed).column("image"), "image"), transposed)
    with pytest.raises(DataError, match="ascontiguousarray"):
        arrow_to_numpy(tensors(pictures.transpose(0, 3, 1, 2)).column("image"), "image")


@pytest.mark.ray
def test_ray_tensors_have_the_layout_of_the_data(ray_cluster, est):
    import ray

    init_orca_context(runtime="ray", cores=4)
    dataset = ray.data.from_numpy(np.array_split(pictures, 3)).rename_columns({"data": "image"})
    close(est.predict(dataset).to_pandas()["prediction"])
    ragged = ray.data.from_items([{"image": np.zeros((8, side, 3), "f4")} for side in (6, 7)], override_num_blocks=1)
    with pytest.raises(DataError, match="several shapes"):
        est.predict(ragged)
