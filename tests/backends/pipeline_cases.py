"""Graphs with other ways to read data: chains of queues, other readers, tf.data pipelines that depend on positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orca.tf1 as tf
from orca.bigdl.util.tf_utils import dump_model
from tests.backends.pipeline_graphs import BATCH, KINDS, Tensors, parse_bytes, parse_example, scaled


def large(folder: str, kind: str) -> None:
    """Dump a graph with 32 kB of results for each record."""
    with tf.Graph().as_default() as graph:
        images, _ = KINDS["fixed_queue" if kind == "queue" else "initializable"][0](["none.bin"])
        tf.tile(tf.reshape(images, [-1, 144]), [1, 57], "large")
        dump_model(folder, graph)


def joined_readers(files: Sequence[str]) -> Tensors:
    """Two readers share the files; a queue of batches follows."""
    queue = tf.train.string_input_producer(files)
    reader = tf.TFRecordReader()
    batch = tf.train.batch_join([[*parse_example(reader.read(queue)[1])] for _ in range(2)], BATCH)
    ahead = tf.FIFOQueue(2, [tensor.dtype for tensor in batch], [tensor.shape for tensor in batch])
    ahead.enqueue(batch)
    images, ids = ahead.dequeue()
    images.set_shape([BATCH, 12, 12, 1])
    return images, ids


def common_queue(files: Sequence[str]) -> Tensors:
    """Records pass a queue of their own, as slim's data provider does it."""
    queue = tf.train.string_input_producer(files)
    common = tf.RandomShuffleQueue(200, 50, [tf.string, tf.string])
    common.enqueue(tf.TFRecordReader().read(queue))
    _, record = common.dequeue()
    return tuple(tf.train.batch([*parse_example(record)], BATCH))


def slim_provider(files: Sequence[str]) -> Tensors:
    """The data provider, the batches and the queue in front of the network that slim's training scripts have."""
    data = tf.contrib.slim.data
    columns = {
        "image": tf.FixedLenFeature((), tf.string),
        "id": tf.FixedLenFeature((), tf.int64),
        "format": tf.FixedLenFeature((), tf.string, "png"),
    }
    items = {
        "image": data.tfexample_decoder.Image("image", "format", shape=[8, 8, 1], channels=1),
        "id": data.tfexample_decoder.Tensor("id", shape=[]),
    }
    decoder = data.tfexample_decoder.TFExampleDecoder(columns, items)
    dataset = data.dataset.Dataset(list(files), tf.TFRecordReader, decoder, 203, {"image": "", "id": ""})
    provider = data.dataset_data_provider.DatasetDataProvider(dataset, 4, common_queue_capacity=20, common_queue_min=10)
    image, row = provider.get(["image", "id"])
    batch = tf.train.batch([scaled(image), row], BATCH, num_threads=4, capacity=5 * BATCH)
    return tuple(data.prefetch_queue.prefetch_queue(batch, capacity=2).dequeue())


def read_up_to(files: Sequence[str]) -> Tensors:
    """Several records at once, which the queue takes apart."""
    queue = tf.train.string_input_producer(files)
    _, records = tf.TFRecordReader().read_up_to(queue, 5)
    images, ids = tf.map_fn(parse_example, records, (tf.float32, tf.int64))
    images.set_shape([None, 12, 12, 1])
    return tuple(tf.train.batch([images, ids], BATCH, enqueue_many=True))


def fixed_batch(files: Sequence[str]) -> Tensors:
    """A graph that insists on full batches."""
    images, ids = KINDS["fixed_queue"][0](files)
    return tf.reshape(images, [BATCH, 12, 12, 1]), tf.reshape(ids, [BATCH])


def single_records(files: Sequence[str]) -> Tensors:
    """No batches at all."""
    _, record = tf.FixedLengthRecordReader(68).read(tf.train.string_input_producer(files))
    image, row = parse_bytes(record)
    return image[None], row


def table_and_reference(files: Sequence[str]) -> Tensors:
    """A lookup table and a variable without a resource, as TensorFlow 1 creates them by default."""
    images, ids = KINDS["fixed_queue"][0](files)
    keys = tf.range(300, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, 2 * keys), -1)
    scale = tf.get_variable("scale", [], initializer=tf.constant_initializer(0.5), use_resource=False)
    return images, tf.cast(tf.cast(table.lookup(ids), tf.float32) * scale, tf.int64)


def listed_files(files: Sequence[str]) -> Tensors:
    """File names from a pattern, in a local variable."""
    pattern = str(Path(files[0]).parent / "*.bin")
    queue = tf.train.string_input_producer(tf.identity(tf.train.match_filenames_once(pattern)))
    _, record = tf.FixedLengthRecordReader(68).read(queue)
    return tuple(tf.train.batch([*parse_bytes(record)], BATCH))


def interleaved(files: Sequence[str]) -> Tensors:
    """Files that are read side by side, with a parser for each."""
    names = tf.data.Dataset.list_files(str(Path(files[0]).parent / "*.tfrecord"))
    data = names.interleave(lambda name: tf.data.TFRecordDataset(name).map(parse_example).repeat(), cycle_length=3)
    return tf.data.make_initializable_iterator(data.batch(BATCH)).get_next()


def placeholder(files: Sequence[str]) -> Tensors:
    """File names that are fed when the iterator is initialized."""
    names = tf.placeholder(tf.string, [None], "names")
    data = tf.data.TFRecordDataset(names).map(parse_example).batch(BATCH)
    return tf.data.make_initializable_iterator(data).get_next()


def two_files(files: Sequence[str]) -> Tensors:
    """Images and numbers from two lists of files, element by element."""
    images = tf.data.TFRecordDataset(files).map(lambda record: parse_example(record)[0])
    binary = [name.replace(".tfrecord", ".bin") for name in files]
    rows = tf.data.FixedLengthRecordDataset(binary, 68).map(lambda record: parse_bytes(record)[1])
    return tf.data.make_one_shot_iterator(tf.data.Dataset.zip((images, rows)).batch(BATCH)).get_next()


def taken(files: Sequence[str]) -> Tensors:
    """Only the first records: which these are depends on those before."""
    data = tf.data.TFRecordDataset(files).take(100).map(parse_example).batch(BATCH)
    return tf.data.make_one_shot_iterator(data).get_next()


def labelled_files(files: Sequence[str]) -> Tensors:
    """Names of whole files beside their labels."""
    rows = [int(name.rpartition("/")[2].partition(".")[0]) for name in files]

    def read(name: Any, row: Any) -> Tensors:
        return parse_bytes(tf.strings.substr(tf.io.read_file(name), 0, 68))[0], tf.cast(row, tf.int64)

    data = tf.data.Dataset.from_tensor_slices((list(files), rows)).map(read).batch(3)
    return tf.data.make_one_shot_iterator(data).get_next()


def whole_files(files: Sequence[str]) -> Tensors:
    """A file is a record; its key is its name."""
    key, content = tf.WholeFileReader().read(tf.train.string_input_producer(files))
    number = tf.strings.substr(key, -5, 1)
    image = parse_bytes(tf.strings.substr(content, 0, 68))[0]
    return tuple(tf.train.batch([image, tf.strings.to_number(number, tf.int64)], 3))


def sliced(files: Sequence[str]) -> Tensors:
    """Names of files and labels from a queue of their numbers."""
    name, row = tf.train.slice_input_producer([list(files), list(range(len(files)))])
    image = parse_bytes(tf.strings.substr(tf.io.read_file(name), 0, 68))[0]
    return tuple(tf.train.batch([image, tf.cast(row, tf.int64)], 3))


ALL = {
    "joined_readers": (joined_readers, "tfrecord"), "common_queue": (common_queue, "tfrecord"),
    "slim_provider": (slim_provider, "tfrecord"), "read_up_to": (read_up_to, "tfrecord"),
    "fixed_batch": (fixed_batch, "bin"),
    "single_records": (single_records, "bin"), "listed_files": (listed_files, "bin"),
    "table_and_reference": (table_and_reference, "bin"),
    "interleaved": (interleaved, "tfrecord"), "placeholder": (placeholder, "tfrecord"),
    "two_files": (two_files, "tfrecord"),
}  # fmt: skip
"""Graphs that compute all digits."""
BY_FILE = {"labelled_files": labelled_files, "whole_files": whole_files, "sliced": sliced}
"""Graphs with one row for each file: its first record."""
