"""Graphs that read their own data, built and dumped in a process of their own: ``python -m … FOLDER``."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import orca.tf1 as tf
from orca.bigdl.util.tf_utils import dump_model

ROWS = 203
CUTS = (0, 80, 81, 150, ROWS)
"""The rows of the files: of different lengths, one of them with a single record."""
BATCH = 16
Tensors = tuple[Any, Any]


def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return images of bytes, and row numbers as what identifies them."""
    images = load_digits().images[:ROWS].astype("u1") * 15
    return images[..., None], np.arange(ROWS)


def write_files(folder: Path) -> None:
    """Write the digits as TFRecords of encoded images, and as records of one length."""
    images, _ = digits()
    with tf.Graph().as_default(), tf.Session() as session:
        content = tf.placeholder(tf.uint8, (8, 8, 1))
        encode = session.make_callable(tf.image.encode_png(content), [content])
        encoded = [encode(image) for image in images]
    for number, (low, high) in enumerate(itertools.pairwise(CUTS)):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for row in range(low, high):
                writer.write(example(encoded[row], row))
        with open(folder / f"{number}.bin", "wb") as file:
            for row in range(low, high):
                file.write(np.int32(row).tobytes() + images[row].tobytes())


def example(image: bytes, row: int) -> bytes:
    """Return a tf.train.Example."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def parse_example(record: Any) -> Tensors:
    columns = {"image": tf.FixedLenFeature([], tf.string), "id": tf.FixedLenFeature([], tf.int64)}
    parsed = tf.parse_single_example(record, columns)
    return scaled(tf.image.decode_png(parsed["image"], 1)), parsed["id"]


def parse_bytes(record: Any) -> Tensors:
    row = tf.decode_raw(tf.strings.substr(record, 0, 4), tf.int32)[0]
    image = tf.decode_raw(tf.strings.substr(record, 4, 64), tf.uint8)
    return scaled(tf.reshape(image, [8, 8, 1])), tf.cast(row, tf.int64)


def scaled(image: Any) -> Any:
    """Resize an image."""
    return tf.reshape(tf.image.resize_images(tf.cast(image, tf.float32) / 255, [12, 12]), [12, 12, 1])


def network(images: Any) -> Any:
    """A small network with variables of its own."""
    net = tf.layers.conv2d(images, 4, 3, activation=tf.nn.relu)
    return tf.layers.dense(tf.layers.flatten(tf.layers.max_pooling2d(net, 2, 2)), 7)


def record_queue(files: Sequence[str]) -> Tensors:
    _, record = tf.TFRecordReader().read(tf.train.string_input_producer(files))
    return tuple(tf.train.shuffle_batch([*parse_example(record)], BATCH, 100, 10))


def fixed_queue(files: Sequence[str]) -> Tensors:
    queue = tf.train.string_input_producer(files, num_epochs=1, shuffle=False)
    _, record = tf.FixedLengthRecordReader(68).read(queue)
    return tuple(tf.train.batch([*parse_bytes(record)], BATCH))


def one_shot(files: Sequence[str]) -> Tensors:
    data = tf.data.TFRecordDataset(files).map(parse_example).shuffle(50).repeat().batch(BATCH)
    return tf.data.make_one_shot_iterator(data).get_next()


def initializable(files: Sequence[str]) -> Tensors:
    data = tf.data.FixedLengthRecordDataset(files, 68).map(parse_bytes, 2).batch(BATCH, drop_remainder=True)
    return tf.data.make_initializable_iterator(data.prefetch(1)).get_next()


KINDS: dict[str, tuple[Callable[[Sequence[str]], Tensors], str]] = {
    "record_queue": (record_queue, "tfrecord"),
    "fixed_queue": (fixed_queue, "bin"),
    "one_shot": (one_shot, "tfrecord"),
    "initializable": (initializable, "bin"),
}


def dump(read: Callable[[Sequence[str]], Tensors], files: Sequence[str], folder: str) -> np.ndarray[Any, Any]:
    """Dump a graph, and return its features for all digits, computed by its own session."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(7)
        images, ids = read(files)
        features = tf.identity(network(images), "net/features")
        tf.identity(ids, "ids")
        pixels = tf.placeholder(tf.float32, (8, 8, 1))
        preparing = scaled(pixels * 255)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            prepare = session.make_callable(preparing, [pixels])
            rows = np.stack([prepare(image / 255.0) for image in digits()[0]])
            dump_model(folder, graph, session)
            size = images.shape[0] or ROWS
            padded = np.concatenate([rows, rows[: -ROWS % size]])
            batches = [padded[low : low + size] for low in range(0, len(padded), size)]
            return np.concatenate([session.run(features, {images: batch}) for batch in batches])[:ROWS]


def main(folder: Path) -> None:
    """Write the files, the four graphs, and what they compute."""
    write_files(folder)
    for name, (read, ending) in KINDS.items():
        files = [str(folder / f"{number}.{ending}") for number in range(len(CUTS) - 1)]
        np.save(folder / f"{name}.npy", dump(read, files, str(folder / name)))


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    main(Path(sys.argv[1]))
