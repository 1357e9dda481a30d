"""The graph snippet of the Orca document; only the import line and the data are changed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import orca.tf1 as tf
from orca import Estimator, XShards, init_orca_context
from tests.conftest import SLOTS


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
max_epoch = 8


def preprocess(data):
    return data["image"] / 16.0, data["label"]


def lenet(images):
    layers = tf.layers
    net = layers.max_pooling2d(layers.conv2d(images, 6, 5, padding="same", activation=tf.nn.relu), 2, 2)
    net = layers.max_pooling2d(layers.conv2d(net, 16, 5, activation=tf.nn.relu), 2, 2)
    net = layers.dense(layers.dense(layers.flatten(net), 120, tf.nn.relu), 84, tf.nn.relu)
    return layers.dense(net, 10)


def accuracy(logits, labels):
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(hits, tf.float32))


def rows_to_predict(context):
    """Return the test images as the runtime's own kind of data for predict."""
    images = X_TEST / 16
    if context.runtime != "spark":
        return XShards.partition({"x": images}, num_shards=3), {}
    import pyarrow as pa

    from orca.shards.shard_formats import arrow_column

    return context.spark.createDataFrame(pa.table({"image": arrow_column(images)})), {"feature_cols": ["image"]}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "runtime", ["local", pytest.param("ray", marks=pytest.mark.ray), pytest.param("spark", marks=pytest.mark.spark)]
)
def test_snippet_learns_digits(runtime, workers, request):
    if runtime != "local":
        request.getfixturevalue("ray_cluster" if runtime == "ray" else "spark_session")
    context = init_orca_context(runtime=runtime, cores=SLOTS)
    with tf.Graph().as_default():
        # define inputs to the graph
        images = tf.placeholder(dtype=tf.float32, shape=(None, 28, 28, 1))
        labels = tf.placeholder(dtype=tf.int32, shape=(None,))

        # define the network and loss
        tf.set_random_seed(0)
        logits = lenet(images)
        loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=labels))

        # define a metric
        acc = accuracy(logits, labels)

        # create an estimator using endpoints of the graph
        est = Estimator.from_graph(
            inputs=images,
            outputs=logits,
            labels=labels,
            loss=loss,
            optimizer=tf.train.AdamOptimizer(),
            metrics={"acc": acc},
            workers=workers,
            seed=0,
        )
    dataset = tfds.load(name="mnist", split="train")
    dataset = dataset.map(preprocess)
    mnist_train = dataset
    est.fit(data=mnist_train, batch_size=32, epochs=max_epoch)
    df, columns = rows_to_predict(context)
    predictions = est.predict(data=df, **columns)
    if runtime == "spark":
        outputs = np.array([row.prediction for row in predictions.collect()])
    else:
        outputs = np.concatenate([shard["prediction"] for shard in predictions.collect()])
    share = (outputs.argmax(1) == Y_TEST).mean()
    print(f"{runtime}, {workers} workers: test accuracy {share:.1%}")
    assert share >= 0.95
    assert est.evaluate(X_TEST / 16, Y_TEST)["acc"] == pytest.approx(share, abs=1e-6)
