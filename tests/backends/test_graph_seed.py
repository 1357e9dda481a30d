"""The snippets of the Orca and TFPark documents, run from their own text, beside Keras models in the same process."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import orca.tf1 as tf
from orca import Estimator, init_orca_context
from orca.context import Context
from orca.errors import DataError
from orca.shards.shard_formats import arrow_column
from tests.conftest import SLOTS

DATA = Path(__file__).resolve().parents[1] / "data"


def blocks(name: str) -> list[str]:
    """Return the Python blocks of a file."""
    return re.findall(r"```python\n(.*?)```", (DATA / name).read_text(), re.DOTALL)


def digits():
    """Return the 8 x 8 digits of scikit-learn as 28 x 28 images."""
    x, y = load_digits(return_X_y=True)
    large = np.kron(x.reshape(-1, 8, 8), np.ones((3, 3)))
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))[..., None].astype("f4")
    return train_test_split(images, y.astype("i4"), test_size=0.25, random_state=0, stratify=y)


X_TRAIN, X_TEST, Y_TRAIN, Y_TEST = digits()
tfds = SimpleNamespace(
    load=lambda name, split: tensorflow.data.Dataset.from_tensor_slices({"image": X_TRAIN, "label": Y_TRAIN}),
)


def preprocess(data):
    return data["image"] / 16.0, data["label"]


def lenet(images):
    layers = tf.layers
    net = layers.max_pooling2d(layers.conv2d(images, 6, 5, padding="same", activation=tf.nn.relu), 2, 2)
    net = layers.max_pooling2d(layers.conv2d(net, 16, 5, activation=tf.nn.relu), 2, 2)
    net = layers.dense(layers.dense(layers.flatten(net), 120, tf.nn.relu), 84, tf.nn.relu)
    return layers.dense(net, 10)


def create_keras_lenet_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def accuracy(logits, labels):
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(hits, tf.float32))


def frame(context):
    """Return the test images as a Spark DataFrame, or as an Arrow table elsewhere."""
    table = pa.table({"image": arrow_column(X_TEST / 16)})
    return context.spark.createDataFrame(table) if context.runtime == "spark" else table


def predicted(outputs):
    """Return the classes that `predict` has found."""
    if isinstance(outputs, pa.Table):
        rows = outputs["prediction"].to_pylist()
    else:
        rows = [row.prediction for row in outputs.collect()]
    return np.array(rows).argmax(1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "runtime", ["local", pytest.param("ray", marks=pytest.mark.ray), pytest.param("spark", marks=pytest.mark.spark)]
)
def test_orca_snippets_learn_digits_from_a_graph_and_from_a_keras_model(runtime, workers, request):
    if runtime != "local":
        request.getfixturevalue("ray_cluster" if runtime == "ray" else "spark_session")
    context = init_orca_context(runtime=runtime, cores=SLOTS)
    settings = {"workers": workers, "seed": 0}
    names = {
        **globals(),
        "Estimator": SimpleNamespace(
            from_graph=partial(Estimator.from_graph, **settings), from_keras=partial(Estimator.from_keras, **settings)
        ),
        "mnist_train": tfds.load(name="mnist", split="train").map(preprocess),
        "df": frame(context),
        "max_epoch": 30,
    }
    from_graph, from_keras, use = blocks("orca_snippets.md")
    shares = {}
    for kind, create in {"graph": from_graph, "keras": from_keras}.items():
        names["max_epoch"] = 30 if kind == "graph" else 3  # of Keras it is only shown that it trains
        exec(create, names)
        exec(use, names)
        shares[kind] = (predicted(names["predictions"]) == Y_TEST).mean()
    print(f"{runtime}, {workers} workers: test accuracy {shares}")
    assert shares["graph"] >= 0.95
    assert shares["keras"] >= 0.5


def slim_lenet():
    """Return LeNet as the models of slim have it."""
    slim = tf.contrib.slim

    def arg_scope():
        with slim.arg_scope([slim.conv2d, slim.fully_connected], activation_fn=tf.nn.relu) as scope:
            return scope

    def network(images, num_classes, is_training):
        with tf.variable_scope("LeNet"):
            net = slim.max_pool2d(slim.conv2d(images, 16, [5, 5], scope="conv1"), [2, 2], 2)
            net = slim.max_pool2d(slim.conv2d(net, 32, [5, 5], scope="conv2"), [2, 2], 2)
            net = slim.fully_connected(slim.flatten(net), 128, scope="fc3")
            net = slim.dropout(net, 0.8, is_training=is_training)
            return slim.fully_connected(net, num_classes, activation_fn=None, scope="fc4"), {}

    return SimpleNamespace(lenet_arg_scope=arg_scope, lenet=network)


@pytest.mark.slow
@pytest.mark.spark
def test_tfpark_snippets_go_from_training_to_predictions(spark_session, tmp_path, monkeypatch):
    context = init_orca_context(runtime="spark", cores=SLOTS)
    monkeypatch.setattr(context.cluster, "cores", 2)  # the snippets train on all cores
    (tmp_path / "lenet").mkdir()
    x_train, y_train, x_test = X_TRAIN / 16, Y_TRAIN, X_TEST / 16
    names = {
        "file_list": list(range(len(x_train))),
        "read_image_and_label": lambda number: (x_train[number], y_train[number]),
        "decode_to_ndarrays": lambda pair: [pair[0], pair[1].reshape(1)],
        "lenet": slim_lenet(),
        "BATCH_SIZE": 20,
    }
    *code, tail = [block.replace("/tmp/", f"{tmp_path}/") for block in blocks("tfpark_snippets.md")]
    for block in code[:4]:
        exec(block, names)
    assert names["optimizer"].estimator.workers == 2
    trained = names["optimizer"].sess.graph
    names |= {
        "file_list": list(range(len(x_test))),
        "read_image_and_label": lambda number: x_test[number],
        "decode_to_ndarrays": lambda image: [image],
    }
    for block in (*code[4:], tail):
        exec(block, names)
    assert names["sess"].graph is not trained
    outputs = np.stack(names["predictions_rdd"].collect())
    share = (outputs.argmax(1) == Y_TEST).mean()
    print(f"TFPark: test accuracy {share:.1%}")
    assert outputs.shape == (len(Y_TEST), 10)
    assert share >= 0.95


# -- the default graph of a thread


@pytest.fixture(autouse=True)
def no_graph_is_left_open():
    yield
    tf.reset_default_graph()
    assert tensorflow.executing_eagerly()


def regression(name="x"):
    """Build a linear model in the default graph; return the arguments of `from_graph`."""
    x, y = tf.placeholder(tf.float32, (None, 4), name), tf.placeholder(tf.float32, (None, 1))
    output = tf.layers.dense(x, 1)
    return {"inputs": x, "outputs": output, "labels": y, "loss": tf.reduce_mean(tf.square(output - y))}


def keras_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


ROWS = np.random.default_rng(0).normal(size=(16, 4)).astype("f4")
USES = {
    "fit": lambda model: model.fit(ROWS, ROWS[:, :1], verbose=0),
    "predict": lambda model: model.predict(ROWS, verbose=0),
    "call": lambda model: model(ROWS).numpy(),
    "create": lambda model: keras_model().fit(ROWS, ROWS[:, :1], verbose=0),
    "weights": lambda model: model.set_weights([value * 0 for value in model.get_weights()]),
    "optimizer": lambda model: keras.optimizers.Adam().build(model.trainable_variables),
    "metric": lambda model: keras.metrics.Mean()(3.0).numpy(),
}


@pytest.mark.parametrize("use", USES)
def test_keras_works_after_an_error_while_a_graph_was_built(use: str):
    model = keras_model()
    with pytest.raises(ValueError, match="as planned"):
        raise ValueError(f"{regression()} as planned")
    assert not tensorflow.executing_eagerly()
    USES[use](model)
    assert tensorflow.executing_eagerly()


def test_each_capture_closes_its_graph_and_the_next_placeholder_opens_another():
    tf.set_random_seed(3)
    first = regression()
    assert first["loss"].graph.seed == 3
    est = Estimator.from_graph(optimizer=tf.train.AdamOptimizer(), seed=0, **first)
    assert tensorflow.executing_eagerly()
    assert tf.get_default_graph() is first["loss"].graph
    assert len(tf.trainable_variables()) == 2
    again = Estimator.from_graph(feed_dict={first["labels"]: np.zeros((3, 1))}, **{**first, "labels": None})
    second = regression()
    assert second["loss"].graph is not first["loss"].graph
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        other = Estimator.from_graph(sess=session, **second)
        assert not tensorflow.executing_eagerly()
    assert tensorflow.executing_eagerly()
    assert {one.sess.graph for one in (est, again)} == {first["loss"].graph}
    assert other.sess is session


def test_a_session_may_come_before_the_first_placeholder():
    session = tf.Session()
    parts = regression()
    session.run(tf.global_variables_initializer())
    est = Estimator.from_graph(sess=session, **parts)
    assert est.sess is session
    assert tf.Session().graph is session.graph is parts["loss"].graph
    assert tf.Session(graph=tf.Graph()).graph is not session.graph
    assert tensorflow.executing_eagerly()


def test_a_refused_graph_stays_open_and_other_threads_are_eager():
    parts = regression()
    with pytest.raises(Exception, match="expected a scalar"):
        Estimator.from_graph(**{**parts, "loss": parts["outputs"]})
    assert not tensorflow.executing_eagerly()
    modes = []
    thread = threading.Thread(target=lambda: modes.append((tensorflow.executing_eagerly(), keras_model())))
    thread.start()
    thread.join(60)
    assert modes[0][0]
    assert not tensorflow.executing_eagerly()
    tf.reset_default_graph()
    assert tensorflow.executing_eagerly()
    assert tf.get_default_graph() is not parts["loss"].graph


def test_a_pipeline_is_read_within_a_graph_but_not_created_there(local: Context):
    before = tensorflow.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :1]))
    with tf.Graph().as_default():
        parts = regression()
        est = Estimator.from_graph(optimizer=tf.train.GradientDescentOptimizer(0.1), seed=0, **parts)
        assert est.fit(before, batch_size=8)["rows"] == [16]
        assert est.evaluate(before)["loss"] > 0
        within = tensorflow.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :1]))
        assert not tensorflow.executing_eagerly()
    with pytest.raises(DataError, match="created while a graph was built"):
        est.fit(within)


def test_savers_read_folders_and_keep_their_graph(tmp_path, local: Context):
    parts = regression()
    est = Estimator.from_graph(optimizer=tf.train.GradientDescentOptimizer(0.1), seed=0, **parts)
    est.fit(ROWS, ROWS[:, :1], epochs=1, batch_size=8)
    saver = tf.train.Saver()
    paths = [saver.save(est.sess, f"{tmp_path}/named/model"), saver.save(est.sess, f"{tmp_path}/")]
    assert "Saver" in dir(tf.train)
    for path in (*paths, f"{tmp_path}/named", str(tmp_path)):
        session = tf.Session()
        saver.restore(session, path)
        np.testing.assert_array_equal(
            session.run(parts["outputs"], {parts["inputs"]: ROWS}), est.predict(ROWS), err_msg=path
        )
