"""TFPark: data sets, optimizers, predictors and nets over TensorFlow graphs."""

from __future__ import annotations

import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tensorflow

import orca.tf1 as tf
from orca.callbacks import Callback, LRScheduler, Run
from orca.context import Context, init_orca_context
from orca.errors import ArgumentError, UnknownArgumentError
from orca.testing.cases import batches, make_data
from orca.tfpark import KerasModel, TFDataset, TFNet, TFOptimizer, TFPredictor, ZooOptimizer
from orca.tfpark.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Exponential,
    Ftrl,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    Plateau,
    RMSprop,
    SequentialSchedule,
    Top1Accuracy,
    TrainSummary,
    TriggerAnd,
    TriggerOr,
    ValidationSummary,
    Warmup,
)
from tests.conformance.graph_models import two_classes


def linear(dataset, units=1):
    features, labels = dataset.tensors
    output = tf.layers.dense(tf.layers.dense(features, 8, tf.nn.tanh, name="first"), units, name="second")
    return output, labels


def test_triggers_summaries_validation_and_prefixes(local: Context, tmp_path):
    x, y = make_data(60, "int64")
    with tf.Graph().as_default():
        dataset = TFDataset.from_ndarrays((x, y), batch_size=12, val_tensors=(x, y))
        output, labels = linear(dataset, 2)
        loss = tf.losses.sparse_softmax_cross_entropy(logits=output, labels=labels)
        methods = {"first/": Adam(1e-2), "second": SGD(0.0)}
        accuracy = {"val_outputs": [output], "val_labels": [labels], "val_method": Top1Accuracy()}
        optimizer = TFOptimizer(loss, methods, workers=2, seed=0, model_dir=str(tmp_path / "model"), **accuracy)
    before = optimizer.sess.run(["second/kernel/Read/ReadVariableOp:0", "first/kernel/Read/ReadVariableOp:0"])
    train, val = TrainSummary(str(tmp_path), "app"), ValidationSummary(str(tmp_path), "val")
    optimizer.set_train_summary(train)
    optimizer.set_val_summary(val)
    history = optimizer.optimize(MaxEpoch(1))
    assert 0 < history["val_Top1Accuracy"][-1] <= 1
    assert optimizer.optimize(MaxEpoch(1)) is None
    assert optimizer.optimize(MaxEpoch(2)) is not None
    assert (optimizer.estimator.epoch, optimizer.estimator.step) == (2, 10)
    assert len(train.read_scalar("loss")) >= 1
    assert len(val.read_scalar("Top1Accuracy")) >= 1
    after = optimizer.sess.run(["second/kernel/Read/ReadVariableOp:0", "first/kernel/Read/ReadVariableOp:0"])
    np.testing.assert_array_equal(after[0], before[0])
    assert np.abs(after[1] - before[1]).max() > 1e-3
    optimizer.optimize(TriggerOr(MaxIteration(13), MinLoss(0.0)))
    assert optimizer.estimator.step == 13
    optimizer.optimize(TriggerAnd(MaxIteration(14), MinLoss(1e9)))
    assert optimizer.estimator.step == 14
    optimizer.load_checkpoint(str(tmp_path / "model"), 10)
    np.testing.assert_array_equal(optimizer.sess.run("first/kernel/Read/ReadVariableOp:0"), after[1])


@pytest.mark.parametrize(
    "method", [SGD(0.1, momentum=0.9), Adagrad(0.1), Adadelta(), RMSprop(), Ftrl(0.1), Adamax(0.01)]
)
def test_every_optimizer_makes_the_loss_smaller(local: Context, method):
    x, _ = make_data(48)
    with tf.Graph().as_default():
        dataset = TFDataset.from_ndarrays((x, x.sum(1, keepdims=True)), batch_size=12)
        output, labels = linear(dataset)
        optimizer = TFOptimizer.from_loss(tf.reduce_mean(tf.square(output - labels)), method, workers=1, seed=0)
    losses = optimizer.optimize(MaxEpoch(4))["loss"]
    assert losses[-1] < losses[0]


def test_nets_and_keras_models_predict(local: Context, tmp_path):
    x, y = make_data(40, "float32")
    with tf.Graph().as_default() as graph:
        a = tf.placeholder(tf.float32, (None, 6), "a")
        b = tf.layers.dense(a, 2, name="b")
        sess = tf.Session()
        sess.run(tf.global_variables_initializer())
        expected = sess.run(b, {a: x})
        frozen = tf.graph_util.convert_variables_to_constants(sess, graph.as_graph_def(), [b.op.name])
    net = TFNet.from_session(sess, [a], [b])
    np.testing.assert_allclose(net.predict(x), expected, rtol=1e-6)
    saved = TFNet.from_saved_model(net.estimator.export("savedmodel", str(tmp_path / "saved")))
    np.testing.assert_allclose(saved.predict(x), expected, rtol=1e-6)
    (tmp_path / "frozen_inference_graph.pb").write_bytes(frozen.SerializeToString())
    names = {"input_names": ["a:0"], "output_names": [b.name]}
    (tmp_path / "graph_meta.json").write_text(json.dumps(names))
    np.testing.assert_allclose(TFNet.from_export_folder(str(tmp_path)).predict(x), expected, rtol=1e-6)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    dataset = TFDataset.from_ndarrays((x, y), batch_size=20)
    wrapped = KerasModel(model, workers=2, seed=0)
    losses = wrapped.fit(dataset, epochs=3)["loss"]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(wrapped.predict(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    trainer = TFOptimizer.from_keras(model, dataset, workers=2)
    assert trainer.optimize(MaxEpoch(1))["loss"][-1] < losses[0]


def test_a_train_operation_applies_the_gradients_that_it_was_given(local: Context):
    x, y = make_data(48, "float32")
    rows = list(batches(x, y[:, None], epochs=2, batch_size=12, seed=3))

    def build(optimizer, features, labels):
        tf.set_random_seed(1)
        output = tf.layers.dense(tf.layers.dense(features, 4, tf.nn.tanh), 1)
        loss = tf.reduce_mean(tf.square(output - labels))
        pairs = optimizer.compute_gradients(loss)
        # The biases of the last layer keep their values, and the other gradients are halved.
        return loss, optimizer.apply_gradients([(gradient / 2, variable) for gradient, variable in pairs[:-1]])

    with tf.Graph().as_default(), tf.Session() as session:
        features, labels = tf.placeholder(tf.float32, (None, 6)), tf.placeholder(tf.float32, (None, 1))
        _, train = build(tf.train.AdamOptimizer(0.01), features, labels)
        session.run(tf.global_variables_initializer())
        for x_rows, y_rows in rows:
            session.run(train, {features: x_rows, labels: y_rows})
        expected = {one.op.name: session.run(one) for one in tf.trainable_variables()}
    for workers in (1, 2):
        dataset = TFDataset.from_ndarrays((x, y[:, None]), batch_size=12)
        loss, train = build(ZooOptimizer(tf.train.AdamOptimizer(0.01)), *dataset.tensors)
        optimizer = TFOptimizer.from_train_op(train, loss, workers=workers, seed=3)
        optimizer.optimize(MaxEpoch(2))
        for name, value in optimizer.estimator.get_state_dict().items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=0 if workers == 1 else 1e-6, err_msg=name)
    loss, _ = build(ZooOptimizer(tf.train.AdamOptimizer(0.01)), *TFDataset.from_ndarrays((x, y[:, None])).tensors)
    with pytest.raises(ArgumentError, match=r"train_op=.* does not come from a ZooOptimizer"):
        TFOptimizer.from_train_op(tf.train.AdamOptimizer().minimize(loss), loss)
    with pytest.raises(ArgumentError, match="Keras optimizer"):
        ZooOptimizer(keras.optimizers.Adam())


SCHEDULE = SequentialSchedule(5).add(Warmup(0.02), 3).add(Exponential(4, 0.5), 100)


def test_scheduled_learning_rates_equal_a_session_loop(local: Context, tmp_path):
    graph = two_classes()
    x, y = make_data(60, "int64")
    copied = tf.Graph()
    with copied.as_default(), tf.Session() as session:
        tf.train.import_meta_graph(tf.train.export_meta_graph(graph=graph.graph))
        rate = tf.placeholder(tf.float32, ())
        train = tf.train.MomentumOptimizer(rate, 0.9).minimize(copied.get_tensor_by_name(graph.tensors["loss"].name))
        session.run(tf.global_variables_initializer())
        for number, (x_rows, y_rows) in enumerate(batches(x, y, epochs=3, batch_size=12, seed=3)):
            feeds = {"net/x:0": x_rows, "net/y:0": y_rows, rate: SCHEDULE.rate(0.05, number)}
            session.run(train, feeds)
        expected = {one.op.name: session.run(one) for one in tf.trainable_variables()}
    for workers in (1, 2):
        est = graph.estimator(SGD(0.05, momentum=0.9, learningrate_schedule=SCHEDULE), workers, seed=3)
        rates = est.fit(x, y, epochs=2, batch_size=12)["lr"] + est.fit(x, y, epochs=1, batch_size=12)["lr"]
        assert rates == pytest.approx([SCHEDULE.rate(0.05, step) for step in (4, 9, 14)[:3]])
        for name, value in est.get_state_dict().items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=0 if workers == 1 else 1e-6, err_msg=name)
    restored = graph.estimator(SGD(0.05), 1).load_tf_checkpoint(est.save_tf_checkpoint(str(tmp_path / "model")))
    np.testing.assert_array_equal(restored.predict(x), pickle.loads(pickle.dumps(est)).predict(x))


def test_a_plateau_and_a_decay_continue_from_a_checkpoint(local: Context, tmp_path):
    x, y = make_data(40, "int64")

    def build(folder):
        dataset = TFDataset.from_ndarrays((x, y), batch_size=20, val_tensors=(x, y))
        output, labels = linear(dataset, 2)
        loss = tf.losses.sparse_softmax_cross_entropy(logits=output, labels=labels)
        plateau = Plateau("score", factor=0.5, patience=1, mode="max", epsilon=2.0)  # no accuracy is better by 2
        methods = {"first": Adam(0.4, learningrate_schedule=plateau), "second": Adam(0.1, 1.0)}
        accuracy = {"val_outputs": [output], "val_labels": [labels], "val_method": [Top1Accuracy()]}
        return TFOptimizer(loss, methods, workers=1, seed=0, model_dir=folder, **accuracy)

    whole, first = build(None), build(str(tmp_path))
    assert whole.optimize(MaxEpoch(7))["lr"] == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.1, 0.05, 0.025])
    first.optimize(MaxEpoch(4))
    second = build(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    assert second.optimize(MaxEpoch(7))["lr"] == pytest.approx([0.1, 0.05, 0.025])
    for name, value in whole.estimator.get_state_dict().items():
        np.testing.assert_array_equal(second.estimator.get_state_dict()[name], value, name)
    with pytest.raises(ArgumentError, match=r"monitors 'val_Top1Accuracy': give validation_data="):
        whole.estimator.fit(x, y)
    with pytest.raises(ArgumentError, match=r'Plateau\("score"\).*give metrics='):
        two_classes().estimator(SGD(0.1, learningrate_schedule=Plateau("score")), 1)


class Halving:
    """A scheduler in the style of torch, for any optimizer with a learning rate."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.learning_rate /= 2

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class OneRate(Callback):
    """Sets the learning rate once."""

    def before_run(self, run: Run) -> None:
        run.optimizer.learning_rate = 0.25


def test_callbacks_set_the_learning_rate(local: Context):
    x, y = make_data(40, "int64")
    est = two_classes().estimator(tf.train.GradientDescentOptimizer(0.8), 2, seed=0)
    assert est.fit(x, y, epochs=3, batch_size=20, callbacks=[LRScheduler(Halving)])["lr"] == [0.8, 0.4, 0.2]
    assert est.fit(x, y, epochs=1, batch_size=20)["lr"] == [0.1]
    assert est.fit(x, y, epochs=1, batch_size=20, callbacks=[OneRate()])["lr"] == [0.25]
    state = est.get_state_dict()
    assert all(np.isfinite(value).all() for value in state.values())


@pytest.mark.parametrize("kind", ["arrays", "frame", "tf.data"])
def test_a_share_of_the_rows_validates(local: Context, kind: str):
    import pandas as pd

    x, y = make_data(60, "float32")
    sizes = {"batch_size": 12}
    if kind == "arrays":
        dataset = TFDataset.from_ndarrays((x[:, 0], y), **sizes)
    elif kind == "frame":
        dataset = TFDataset.from_dataframe(pd.DataFrame({"a": x[:, 0], "y": y}), ["a"], ["y"], **sizes)
    else:
        rows = tensorflow.data.Dataset.from_tensor_slices((x[:, 0], y))
        dataset = TFDataset.from_tf_data_dataset(rows, **sizes)
    features, labels = ([one] if not isinstance(one, list) else one for one in dataset.tensors)
    loss = tf.reduce_mean(tf.square(features[0] * tf.get_variable("weight", ()) - labels[0]))
    history = TFOptimizer(loss, Adam(0.1), val_split=0.25, workers=1, seed=0).optimize(MaxEpoch(2))
    assert history["rows"] == [45, 45]
    assert len(history["val_loss"]) == 2
    with pytest.raises(ArgumentError, match="val_split=1.5: expected a number between 0 and 1"):
        dataset.split(1.5)
    with pytest.raises(ArgumentError, match="Give one of val_split= and validation rows"):
        TFDataset.from_ndarrays((x, y), val_tensors=(x, y)).split(0.5)


def test_tf_data_frames_bytes_and_wrong_sizes(local: Context, tmp_path):
    import pandas as pd

    x, y = make_data(40, "float32")
    rows = tensorflow.data.Dataset.from_tensor_slices((x, y[:, None]))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    with tf.Graph().as_default():
        dataset = TFDataset.from_tf_data_dataset(rows, batch_size=10)
        output, labels = linear(dataset)
        first = TFOptimizer(tf.reduce_mean(tf.square(output - labels)), Adam(0.1), workers=1, seed=0)
        columns = TFDataset.from_dataframe(frame, ["a", "b"], ["y"], batch_size=10)
        (a, b), (target,) = columns.tensors
        weight = tf.get_variable("weight", ())
        loss = tf.reduce_mean(tf.square((a + b) * weight - target))
        second = TFOptimizer(loss, Adam(0.1), workers=1, seed=0)
        with pytest.raises(ArgumentError, match="batch_per_thread on TFDataset instead of batch_size"):
            TFPredictor(first.sess, [output])
        records = tmp_path / "rows.tfrecord"
        with tf.io.TFRecordWriter(str(records)) as writer:
            for value in (b"a\0", b"\0\0b", b"c\0\0"):
                writer.write(value)
        texts = TFDataset.from_tfrecord_file(None, str(records), batch_per_thread=2)
        lengths = tf.strings.length(texts.tensors[0])
        predicted = TFPredictor(tf.Session(), [lengths], workers=1).predict()
    assert first.optimize(MaxEpoch(2))["rows"] == [40, 40]
    assert second.optimize(MaxEpoch(1))["rows"] == [40]
    np.testing.assert_array_equal(predicted.to_numpy(), [2, 3, 3])
    with pytest.raises(UnknownArgumentError, match=r"no argument shufle=. Did you mean 'shuffle'"):
        TFDataset.from_ndarrays(x, shufle=False)
    with pytest.raises(ArgumentError, match="types=.*one for each of the 2 arrays"):
        TFDataset.from_rdd(None, names=["a", "b"], shapes=[[], []], types=[tf.float32])
    with pytest.raises(ArgumentError, match="MaxScore needs a validation metric"):
        first.optimize(TriggerOr(MaxEpoch(9), MaxScore(0.9)))
    with pytest.raises(ArgumentError, match="should not be set simultaneously"):
        TFDataset.from_ndarrays(x, batch_size=2, batch_per_thread=2)


@pytest.mark.slow
@pytest.mark.spark
def test_every_constructor_of_a_dataset_trains_or_predicts_on_spark(spark_session, tmp_path):
    init_orca_context(runtime="spark", cores=2)
    sc = spark_session.sparkContext
    x, y = make_data(30, "float32")
    pairs = sc.parallelize([(row, label) for row, label in zip(x, y, strict=True)], 3)
    named = {"left": (tf.float32, [2]), "right": (tf.float32, [4])}
    by_name = pairs.map(lambda pair: ({"left": pair[0][:2], "right": pair[0][2:]}, pair[1]))
    frame = spark_session.createDataFrame([(float(row[0]), int(row[1] > 0), 1.0) for row in x], ["a", "b", "y"])
    datasets = {
        "names": TFDataset.from_rdd(
            pairs.map(lambda pair: [pair[0], pair[1]]), names=["x", "y"], shapes=[[6], []], batch_size=10
        ),
        "structure": TFDataset.from_rdd(
            by_name, features=named, labels=(tf.float32, []), batch_size=10, val_rdd=by_name
        ),
        "frame": TFDataset.from_dataframe(frame, ["a", "b"], ["y"], batch_size=10, validation_df=frame),
        "arrays": TFDataset.from_ndarrays((x, y), batch_size=10, val_tensors=(x, y)),
    }
    for name, dataset in datasets.items():
        with tf.Graph().as_default():
            parts = [tf.cast(one, tf.float32) for one in tensorflow.nest.flatten(dataset.tensors)]
            rows = tf.concat([tf.reshape(one, [tf.shape(one)[0], -1]) for one in parts], 1)
            loss = tf.reduce_mean(tf.square(rows)) * tf.get_variable("weight", ())
            history = TFOptimizer(loss, SGD(0.01), workers=2, seed=0).optimize(MaxEpoch(1))
        assert history["rows"] == [30], name
        assert ("val_loss" in history[-1]) == (name != "names"), name
    texts = ["a", "bcd", "", "é"]
    blobs = [b"a\0", b"\0\0b", b"", b"c\0\0"]
    records = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(records)) as writer:
        for blob in blobs:
            writer.write(blob)
    for dataset, lengths in (
        (TFDataset.from_string_rdd(sc.parallelize(texts, 2), batch_per_thread=3), [1, 3, 0, 2]),
        (TFDataset.from_bytes_rdd(sc.parallelize(blobs, 2), batch_per_thread=3), [2, 3, 0, 3]),
        (TFDataset.from_tfrecord_file(sc, str(records), batch_per_thread=3), [2, 3, 0, 3]),
    ):
        outputs = [tf.strings.length(dataset.tensors[0])]
        predictor = TFPredictor(tf.Session(), outputs, workers=2)
        assert [int(length) for length in predictor.predict().collect()] == lengths
    rows = tensorflow.data.Dataset.from_tensor_slices(x)
    dataset = TFDataset.from_tf_data_dataset(rows, batch_per_thread=7)
    outputs = [tf.reduce_sum(dataset.tensors[0], 1)]
    predicted = TFPredictor(tf.Session(), outputs, workers=2).predict().collect()
    np.testing.assert_allclose(predicted, x.sum(1), rtol=1e-6)
