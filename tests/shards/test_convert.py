"""Conversions into the feed: every kind of data becomes the same arrays by the same rules."""

from __future__ import annotations

import datetime
import decimal
import os
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from orca import Estimator, OrcaContext, WorkerError, XShards, init_orca_context
from orca.context import Context
from orca.errors import ArgumentError, ColumnError, DataError, NotPicklableError
from orca.shards.adapters.base import Checks, Form
from orca.shards.adapters.registry import adapt
from orca.shards.adapters.torch_data import batches as torch_batches
from orca.shards.columns import arrow_to_numpy, assemble
from orca.shards.engines.spark_frames import first_rows
from orca.shards.feed import Rows
from orca.shards.on_rank import FetchedRows, Reader, SentSource
from orca.shards.streams import StreamRows

NAMES = {"feature_cols": ["a", "b"], "label_cols": "label"}


def columns():
    rng = np.random.default_rng(0)
    return {
        "a": rng.normal(size=12).astype("f4"),
        "b": rng.integers(0, 9, 12),
        "image": rng.normal(size=(12, 2, 3)).astype("f4"),
        "label": rng.integers(0, 2, 12),
    }


def nested(array):
    return [value.tolist() for value in array]


def bring(rank_context, on_rank):
    handles = rank_context.sources["data"]
    rows = handles[0].load().open(Reader(0, 1, seed=0)) if on_rank else Rows(handles)
    if isinstance(rows, StreamRows):
        return next(iter(rows.pieces(1000, None)))
    if isinstance(rows, FetchedRows):
        return next(iter(rows.pieces(0, len(rows), len(rows))))
    return rows.slice(0, len(rows))


def arrays_of(data, context, **form):
    """What a rank finds in the data."""
    shards = adapt(data).shards(Form(**form), context.engine)
    return context.gang(1).call(bring, isinstance(shards, SentSource), sources={"data": shards})[0]


def test_arrow_rules():
    def back(values, kind=None):
        return arrow_to_numpy(pa.array(values, kind), "c")

    np.testing.assert_array_equal(back([1.5, None]), [1.5, np.nan])
    assert back([True, False]).dtype == bool
    assert back([1, 2], pa.int8()).dtype == np.int8
    np.testing.assert_array_equal(back([[[1, 2]], [[3, 4]]]), [[[1, 2]], [[3, 4]]])
    np.testing.assert_array_equal(back([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(back([decimal.Decimal("1.25"), None]), [1.25, np.nan])
    assert back([datetime.datetime(2024, 1, 2, 3)]).dtype.kind == "M"
    assert back([datetime.date(2024, 1, 2)])[0] == np.datetime64("2024-01-02")
    assert back(["x", "yz"]).tolist() == ["x", "yz"]
    chunked = pa.chunked_array([[[1, 2]], [[3, 4], [5, 6]]])
    np.testing.assert_array_equal(arrow_to_numpy(chunked, "c"), [[1, 2], [3, 4], [5, 6]])
    sliced = pa.array([[0, 0], [1, 2], [3, 4]])[1:]
    np.testing.assert_array_equal(arrow_to_numpy(sliced, "c"), [[1, 2], [3, 4]])
    with pytest.raises(DataError, match=r"'c' \(int64\) has 1 missing values.*fillna"):
        back([1, None])
    with pytest.raises(DataError, match=r"lists of 1 to 2 values; a model needs one length"):
        back([[1], [2, 3]])
    with pytest.raises(DataError, match="select its fields"):
        back([{"f": 1}])


def test_one_dimensional_columns_make_a_matrix_and_groups_make_inputs():
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [[1, 2], [3, 4]]})
    np.testing.assert_array_equal(assemble(table, ["a", "b"], "feature_cols"), [[1, 0.5], [2, 1.5]])
    left, right = assemble(table, [["a", "b"], "c"], "feature_cols")
    assert left.shape == right.shape == (2, 2)
    one, two = assemble(table, ["a", "b"], "feature_cols", together=False)
    assert one.tolist() == [1, 2]
    assert two.tolist() == [0.5, 1.5]


def test_pandas_arrow_and_shards_of_frames_give_the_same_arrays(context: Context):
    data = columns()
    frame = pd.DataFrame({**data, "image": list(data["image"])})
    table = pa.table({**data, "image": nested(data["image"])})
    want = {"feature_cols": ["a", "b"], "label_cols": "label"}
    expected = np.column_stack([data["a"], data["b"]])
    for source in (
        frame,
        table,
        XShards.from_pandas(frame, 3),
        XShards.from_arrow(table, 3),
        XShards.partition(data, 3),
    ):
        found = arrays_of(source, context, **want)
        np.testing.assert_allclose(found["x"], expected)
        np.testing.assert_array_equal(found["y"], data["label"])
        image = arrays_of(source, context, feature_cols="image", label_cols="label")
        np.testing.assert_allclose(image["x"], data["image"])
    with pytest.raises(ColumnError, match=r"feature_cols='imgae' is not in.*Did you mean 'image'"):
        arrays_of(XShards.from_pandas(frame, 3), context, feature_cols="imgae", label_cols="label")
    with pytest.raises(ColumnError, match="choose some with feature_cols="):
        arrays_of(frame, context)


@pytest.mark.spark
def test_spark_columns_of_every_type(spark_session):
    from pyspark.ml.linalg import Vectors

    context = init_orca_context(runtime="spark", cores=4)
    day = datetime.datetime(2024, 5, 6, 7)
    rows = [
        (i, i / 2, [float(i), 1.0], Vectors.dense([i, 2.0]), [[i, 1], [2, 3]], decimal.Decimal(i), day, f"t{i}", None)
        for i in range(7)
    ]
    schema = (
        "i int, d double, v array<float>, vec {}, m array<array<int>>, dec decimal(10,2), t timestamp, s string, n int"
    )
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types

    fields = types._parse_datatype_string(schema.replace("vec {}, ", "")).fields
    fields.insert(3, types.StructField("vec", VectorUDT()))
    frame = spark_session.createDataFrame(rows, types.StructType(fields)).repartition(3)

    def column(name):
        found = arrays_of(frame, context, feature_cols=[name], label_cols="i", checks=Checks(other_kinds="UM"))
        return found["x"][np.argsort(found["y"])]

    assert column("i").dtype == np.int32
    np.testing.assert_array_equal(column("d"), np.arange(7) / 2)
    assert column("v").shape == (7, 2)
    assert column("v").dtype == np.float32
    np.testing.assert_array_equal(column("vec")[:, 0], np.arange(7))
    assert column("m").shape == (7, 2, 2)
    assert column("dec").dtype == np.float64
    assert column("t").dtype.kind == "M"
    assert column("s").tolist() == [f"t{i}" for i in range(7)]
    with pytest.raises(WorkerError, match="missing values"):
        column("n")
    with pytest.raises(ColumnError, match="Did you mean 'vec'"):
        column("vecc")


class TinyRows(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2


def test_torch_datasets_and_loaders(local: Context):
    tensors = torch.utils.data.TensorDataset(torch.arange(9.0).reshape(9, 1).repeat(1, 3), torch.arange(9) % 2)
    loader = torch.utils.data.DataLoader(TinyRows(), batch_size=4, shuffle=True)
    for source in (TinyRows(), tensors, loader):
        found = arrays_of(source, local)
        np.testing.assert_array_equal(found["x"][:, 0], np.arange(9))
        np.testing.assert_array_equal(found["y"], np.arange(9) % 2)


def test_torch_loaders_are_asked_for_rows_as_they_would_give_them(local: Context):
    data = torch.utils.data
    tensors = data.TensorDataset(torch.arange(9.0).reshape(9, 1), torch.arange(9) % 2)

    class Doubled(data.TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x * 2, y

    def doubled(rows):
        x, y = data.default_collate(rows)
        return x * 2, y

    grouped = data.DataLoader(TinyRows(), batch_sampler=data.BatchSampler(data.RandomSampler(TinyRows()), 4, False))
    batches = data.DataLoader([(torch.zeros(2, 3), torch.ones(2)), (torch.ones(7, 3), torch.ones(7))], batch_size=None)
    for source, first in (
        (Doubled(*tensors.tensors), 2 * np.arange(9)),
        (data.DataLoader(tensors, collate_fn=doubled), 2 * np.arange(9)),
        (data.DataLoader(tensors, batch_size=None), np.arange(9)),
        (grouped, np.arange(9)),
        (batches, np.repeat([0, 1], [2, 7])),
    ):
        np.testing.assert_array_equal(arrays_of(source, local)["x"][:, 0], first)


class FirstRows(torch.utils.data.SequentialSampler):
    """As long as the data, and yet other rows."""

    def __iter__(self):
        return iter([0] * len(self))


def test_torch_samplers_that_pick_rows_are_refused_for_predictions():
    data = torch.utils.data
    rows = TinyRows()
    for options, name in (
        ({"batch_sampler": [[0, 1], [2]]}, "list"),
        ({"batch_sampler": data.BatchSampler(data.SubsetRandomSampler([1]), 2, False)}, "SubsetRandomSampler"),
        ({"batch_sampler": data.BatchSampler(range(9), 2, False)}, "range"),
        ({"sampler": data.SubsetRandomSampler([1, 2])}, "SubsetRandomSampler"),
        ({"sampler": data.RandomSampler(rows, replacement=True)}, "RandomSampler with replacement"),
        ({"sampler": data.RandomSampler(rows, num_samples=4)}, "RandomSampler"),
        ({"sampler": FirstRows(rows)}, "FirstRows"),
    ):
        with pytest.raises(DataError, match=f"has a {name}, which Orca would ignore"):
            next(torch_batches(data.DataLoader(rows, **options)))


def test_torch_batch_samplers_of_another_kind_are_refused_for_training(local: Context):
    loader = torch.utils.data.DataLoader(TinyRows(), batch_sampler=[[0, 1], [2]])
    with pytest.raises(DataError, match="has a list, which Orca would ignore"):
        arrays_of(loader, local)


def test_data_creators_are_called_once_by_every_rank(context: Context, tmp_path):
    log = tmp_path / "log"

    def creator(config, batch_size):
        with log.open("a") as file:
            file.write(f"{os.getpid()} {config} {batch_size}\n")
        return torch.utils.data.DataLoader(TinyRows(), batch_size=batch_size)

    est = Estimator.from_torch(
        model=lambda config: nn.Linear(3, 2), optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
        config={"lr": 0.1}, workers=2, seed=0,
    )  # fmt: skip
    history = est.fit(creator, epochs=2, batch_size=4, validation_data=lambda: (np.ones((4, 3)), np.ones(4)))
    assert history["rows"] == [9, 9]
    calls = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert [arguments for _, arguments in calls] == ["{'lr': 0.1} 4"] * 2
    assert len({str(os.getpid()), *(pid for pid, _ in calls)}) == 3, "each rank calls it, and the driver does not"


def arrays_of_this_rank(arrays, folder):
    """Return more rows on the rank that asks first."""
    try:
        (folder / "asked").mkdir()
    except FileExistsError:
        return arrays
    return tuple(array[:6] for array in arrays)


def test_data_creators_may_return_any_data_but_shards(local: Context, tmp_path):
    frame = pd.DataFrame(columns() | {"image": list(columns()["image"])})
    table = pa.Table.from_pandas(frame[["a", "b", "label"]])
    arrays = frame[["a", "b"]].to_numpy("f4"), frame["label"].to_numpy()
    results = []
    for creator, names in ((lambda: arrays, {}), (lambda: frame, NAMES), (lambda: table, NAMES)):
        est = Estimator.from_torch(
            model=lambda config: nn.Linear(2, 2), optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
            config={"lr": 0.1}, workers=2, seed=0,
        )  # fmt: skip
        est.fit(creator, epochs=2, batch_size=4, **names)
        results.append([est.evaluate(creator, **names)["loss"], est.evaluate(*arrays)["loss"]])
        np.testing.assert_allclose(est.predict(lambda: arrays[0]), est.predict(arrays[0]), rtol=1e-6)
    np.testing.assert_allclose(results, results[0][0], rtol=1e-6)
    for creator, message in (
        (lambda config: None, r"data creator given as data= returned a NoneType"),
        (lambda config: arrays_of_this_rank(arrays, tmp_path), r"rows on rank 0 and .* on rank 1"),
    ):
        with pytest.raises(WorkerError, match=message):
            est.fit(creator, batch_size=4)
    shards = XShards.partition({"x": arrays[0], "y": arrays[1]}, 2)
    with pytest.raises((WorkerError, NotPicklableError), match="shards|XShards"):
        est.fit(lambda config: shards, batch_size=4)
    with pytest.raises(ArgumentError, match=r"data= has the parameters \(a, b, c\)"):
        est.fit(lambda a, b, c: arrays)


def entered(log):
    def creator(config):
        with log.open("a") as file:
            file.write("in ")
        time.sleep(0.3)
        with log.open("a") as file:
            file.write("out ")
        return np.zeros((8, 3), "f4"), np.zeros(8, "i8")

    return creator


def test_creators_run_one_at_a_time_if_asked(local: Context, tmp_path):
    est = Estimator.from_torch(
        model=lambda config: nn.Linear(3, 2), optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(), workers=3
    )
    OrcaContext.serialize_data_creator = True
    try:
        est.fit(entered(tmp_path / "in turn"), batch_size=6)
    finally:
        OrcaContext.serialize_data_creator = False
    est.fit(entered(tmp_path / "at once"), batch_size=6)
    assert (tmp_path / "in turn").read_text() == "in out " * 3
    assert (tmp_path / "at once").read_text().startswith("in in ")


@pytest.mark.slow
def test_tf_datasets(local: Context):
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices((np.arange(9.0), np.arange(9)))
    for source in (rows, rows.batch(4), rows.batch(2).prefetch(1)):
        found = arrays_of(source, local)
        np.testing.assert_array_equal(found["x"], np.arange(9.0))
        np.testing.assert_array_equal(found["y"], np.arange(9))


def train(source, context, **more):
    est = Estimator.from_torch(
        model=lambda config: nn.Linear(2, 2), optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
        config={"lr": 0.1}, workers=2, seed=0,
    )  # fmt: skip
    est.fit(source, epochs=2, batch_size=4, shuffle=False, feature_cols=["a", "b"], label_cols="label", **more)
    return est


def test_frames_train_and_predict_beside_their_columns(context: Context):
    data = {name: value for name, value in columns().items() if name != "image"}
    frame = pd.DataFrame(data, index=np.arange(12) + 100)
    est = train(frame, context, validation_data=frame)
    x = np.column_stack([data["a"], data["b"]]).astype("f4")
    expected = est.get_model()(torch.from_numpy(x)).detach().numpy()
    found = est.predict(frame, feature_cols=["a", "b"])
    assert list(found.columns) == ["a", "b", "label", "prediction"]
    assert found.index.tolist() == frame.index.tolist()
    np.testing.assert_allclose(np.stack(found["prediction"]), expected, rtol=1e-5, atol=1e-6)
    old = pa.table({**data, "prediction": np.zeros(12)})  # is replaced
    for given in (old, old.to_pandas()):
        again = pa.table(est.predict(given, feature_cols=["a", "b"]))
        assert again.column_names == ["a", "b", "label", "prediction"]
        np.testing.assert_allclose(again["prediction"].to_pylist(), expected, rtol=1e-5, atol=1e-6)
    shards = est.predict(XShards.from_pandas(frame, 3), feature_cols=["a", "b"])
    np.testing.assert_allclose(np.stack(shards.to_pandas()["prediction"]), expected, rtol=1e-5, atol=1e-6)
    assert est.evaluate(frame, feature_cols=["a", "b"], label_cols="label")["loss"] > 0
    later = pd.DataFrame(data)[4:]
    assert est.predict(later, feature_cols=["a", "b"]).index.tolist() == later.index.tolist()
    with pytest.raises(ColumnError, match="choose some with label_cols="):
        est.fit({"a": data["a"], "b": data["b"]}, feature_cols=["a", "b"])
    with pytest.raises(ColumnError, match=r"feature_cols='bb'.*Columns: a, b, label"):
        est.predict(frame, feature_cols=["a", "bb"])


@pytest.mark.spark
def test_a_spark_frame_is_asked_for_its_first_rows_once(spark_session):
    frame = spark_session.createDataFrame(pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": [1, 2, 3]})).coalesce(1)
    spark = spark_session.sparkContext
    spark.setJobGroup("first rows", "test")
    try:
        one = first_rows(frame, ["a"], 2)
        jobs = len(spark.statusTracker().getJobIdsForGroup("first rows"))
        assert first_rows(frame, ["a"], 2) is one
        assert len(spark.statusTracker().getJobIdsForGroup("first rows")) == jobs > 0
        # Other columns, another number of rows and another frame are other questions.
        assert first_rows(frame, ["b"], 2).to_pydict() == {"b": [1, 2]}
        assert first_rows(frame, ["a"], 1).to_pydict() == {"a": [1.5]}
        assert first_rows(frame.filter("b > 1"), ["a"], 2).to_pydict() == {"a": [2.5, 3.5]}
    finally:
        spark.setLocalProperty("spark.jobGroup.id", None)
        spark.setLocalProperty("spark.job.description", None)


@pytest.mark.spark
def test_spark_frame_trains_and_comes_back_with_predictions(spark_session):
    context = init_orca_context(runtime="spark", cores=4)
    data = {name: value for name, value in columns().items() if name != "image"}
    frame = spark_session.createDataFrame(pd.DataFrame(data)).coalesce(1)
    est = train(frame, context)
    found = est.predict(frame, feature_cols=["a", "b"])
    assert found.columns == ["a", "b", "label", "prediction"]
    rows = found.collect()
    x = np.array([[row["a"], row["b"]] for row in rows], "f4")
    expected = est.get_model()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-5, atol=1e-6)
    assert len(rows) == 12


@pytest.mark.ray
def test_ray_dataset_trains_and_comes_back_with_predictions(ray_cluster):
    import ray.data

    context = init_orca_context(runtime="ray", cores=4)
    data = {name: value for name, value in columns().items() if name != "image"}
    dataset = ray.data.from_pandas(pd.DataFrame(data))
    est = train(dataset, context)
    found = est.predict(dataset, feature_cols=["a", "b"]).to_pandas()
    assert list(found.columns) == ["a", "b", "label", "prediction"]
    assert len(found) == 12
