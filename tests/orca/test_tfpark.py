"""TFPark: data sets, optimizers, predictors and nets over TensorFlow graphs."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tensorflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import orca.tf1 as tf
from orca.context import Context, init_orca_context
from orca.errors import ArgumentError
from orca.testing.cases import make_data
from orca.tfpark import KerasModel, TFDataset, TFNet, TFOptimizer, TFPredictor
from orca.tfpark.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    MaxEpoch,
    MaxIteration,
    MinLoss,
    RMSprop,
    Top1Accuracy,
    TrainSummary,
    TriggerAnd,
    TriggerOr,
    ValidationSummary,
)
from tests.conftest import SLOTS


def digits():
    x, y = load_digits(return_X_y=True)
    images = (x / 16).astype("f4").reshape(-1, 8, 8, 1)
    return train_test_split(images, y.astype("i4"), test_size=0.25, random_state=0)


def small_lenet(images, training):
    """A small network of tf.contrib.slim."""
    slim = tf.contrib.slim
    net = slim.max_pool2d(slim.conv2d(images, 16, [3, 3], scope="conv"), [2, 2])
    net = slim.fully_connected(slim.flatten(net), 64, scope="full")
    net = slim.dropout(net, 0.8, is_training=training)
    return slim.fully_connected(net, 10, activation_fn=None, scope="logits")


@pytest.mark.slow
@pytest.mark.spark
def test_seed_000_from_training_to_predictions_on_spark(spark_session, tmp_path):
    init_orca_context(runtime="spark", cores=SLOTS)
    x_train, x_test, y_train, y_test = digits()
    sc = spark_session.sparkContext
    train_rdd = sc.parallelize(list(range(len(x_train))), 3).map(lambda i: [x_train[i], y_train[i : i + 1]])
    with tf.Graph().as_default():
        dataset = TFDataset.from_rdd(
            train_rdd,
            names=["features", "labels"],
            shapes=[[8, 8, 1], [1]],
            types=[tf.float32, tf.int32],
            batch_size=64,
        )
        images, labels = dataset.tensors
        squeezed_labels = tf.squeeze(labels, 1)
        logits = small_lenet(images, True)
        loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=squeezed_labels))
        optimizer = TFOptimizer(loss, Adam(5e-3), workers=2, seed=0)
        optimizer.set_train_summary(TrainSummary(str(tmp_path / "logs"), "lenet"))
        optimizer.optimize(end_trigger=MaxEpoch(8))
        saver = tf.train.Saver()
        path = saver.save(optimizer.sess, str(tmp_path / "lenet" / "model"))
    testing_rdd = sc.parallelize(list(range(len(x_test))), 2).map(lambda i: [x_test[i]])
    with tf.Graph().as_default():
        dataset = TFDataset.from_rdd(testing_rdd, names=["features"], shapes=[[8, 8, 1]], types=[tf.float32])
        logits = small_lenet(dataset.tensors[0], False)
        sess = tf.Session()
        tf.train.Saver().restore(sess, path)
        predictions = TFPredictor(sess, [logits], workers=2).predict().collect()
    accuracy = (np.stack(predictions).argmax(1) == y_test).mean()
    assert len(predictions) == len(x_test)
    assert accuracy >= 0.95, accuracy


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
    with pytest.raises(ArgumentError, match="should not be set simultaneously"):
        TFDataset.from_ndarrays(x, batch_size=2, batch_per_thread=2)
    with pytest.raises(ArgumentError, match="need a graph"):
        TFDataset.from_ndarrays(x).tensors  # noqa: B018
