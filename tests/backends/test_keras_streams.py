"""tf.data pipelines run on the ranks: each record once per epoch, in an order that the seed decides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from orca import Estimator
from orca.context import Context
from orca.errors import DataError, WorkerError
from orca.shards.adapters.base import Form
from orca.shards.adapters.registry import adapt
from orca.shards.adapters.tf_streams import elements
from orca.shards.on_rank import Reader
from orca.shards.streams import StreamFeed
from orca.testing.faults import Fault
from orca.triggers import SeveralIteration

RECORDS, BATCH, WIDTH = 203, 16, 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    paths = [str(folder / f"{number}.tfrecord") for number in range(5)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for record in range(number, RECORDS, 5):
                writer.write(np.full(WIDTH, record, "f4").tobytes())
    return paths


def parsed(record: Any) -> Any:
    values = tf.reshape(tf.io.decode_raw(record, tf.float32), [WIDTH])
    return values / 100 + tf.random.uniform([WIDTH]) / 1000, values[0] / 100


def pipeline(files: list[str]) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(files).shuffle(50).map(parsed).prefetch(1)


def model_creator(config: dict[str, Any]) -> keras.Model:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return model


def make(workers: int, **options: Any) -> Estimator:
    return Estimator.from_keras(model_creator=model_creator, workers=workers, seed=3, **options)


def weights(est: Estimator) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in est.get_model().get_weights()])


def read(context: Any, epochs: int, first: tuple[int, int]) -> list[tuple[int, list[list[int]]]]:
    """Return, on a rank, the records of each step of some epochs, and the process that has read them."""
    place = context.place
    source = context.sources["data"][0].load()
    rows = source.open(Reader(place.rank, place.world, 7, context.allgather))
    feed = StreamFeed(rows, batch_size=BATCH)
    numbers = []
    for epoch in range(first[0], epochs):
        batches = feed.epoch(epoch, first[1] if epoch == first[0] else 0)
        numbers.append([np.rint(batch.data["y"][: batch.rows] * 100).astype(int).tolist() for batch in batches])
    return [(os.getpid(), steps) for steps in numbers]


def streamed(
    context: Context, data: Any, workers: int, epochs: int = 2, first: tuple[int, int] = (0, 0), **form: Any
) -> list[Any]:
    """Return the records of each epoch and rank, step by step."""
    shards = adapt(data).shards(Form(**form), context.engine)
    try:
        ranks = context.gang(workers).call(read, epochs, first, sources={"data": shards})
    finally:
        shards.release()
    return [[steps for _, steps in epoch] for epoch in zip(*ranks, strict=True)]


def flat(epoch: list[list[list[int]]]) -> list[int]:
    return [number for rank in epoch for step in rank for number in step]


def read_so_far() -> int:
    """Bytes that this process has read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def test_two_workers_read_each_record_once_and_the_driver_none(local: Context, tmp_path: Path):
    path, rows = [str(tmp_path / f"{number}") for number in range(2)], 8 << 20
    for number, name in enumerate(path):
        with tf.io.TFRecordWriter(name) as writer:
            for record in range(8):
                writer.write(np.full(rows // 4 // 8, record * 2 + number, "f4").tobytes())
    dataset = tf.data.TFRecordDataset(path).shuffle(8).map(lambda record: (1.0, tf.io.decode_raw(record, "float32")[0]))
    dataset = dataset.map(lambda x, y: (x, y / 100))
    before = read_so_far()
    epochs = streamed(local, dataset, 2)
    assert read_so_far() - before < rows // 8, "16 MB of records are read in each epoch, by the ranks"
    for epoch in epochs:
        assert sorted(flat(epoch)) == list(range(16))
        assert [{number % 2 for step in rank for number in step} for rank in epoch] == [{0}, {1}], "by file"
    assert flat(epochs[0]) != flat(epochs[1]), "every epoch has another order"


def test_sharding_follows_the_dataset_and_the_number_of_files(local: Context, files: list[str]):
    by_file, again = streamed(local, pipeline(files), 2), streamed(local, pipeline(files), 2)
    assert by_file == again, "the seed decides the order"
    for epoch in by_file:
        assert sorted(flat(epoch)) == list(range(RECORDS))
        assert all(len({number % 5 for step in rank for number in step}) < 5 for rank in epoch)
    one = streamed(local, pipeline(files[:1]), 1)
    for data in (pipeline(files[:1]), lambda: pipeline(files[:1])):
        by_row = streamed(local, data, 2)
        for epoch, expected in zip(by_row, one, strict=True):
            joined = [left + right for left, right in zip(*epoch, strict=True)]
            assert joined == expected[0], "without a file per worker, two workers see the steps of one"
    by_row = streamed(local, pipeline(files).with_options(sharding("DATA")), 2)
    assert sorted(flat(by_row[0])) == list(range(RECORDS))
    assert all(len({number % 5 for step in rank for number in step}) == 5 for rank in by_row[0])
    with pytest.raises(WorkerError, match=r"FILE gives every worker.* one file.*reads 1 and there are 2 workers"):
        streamed(local, pipeline(files[:1]).with_options(sharding("FILE")), 2)


def sharding(policy: str) -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return options


@pytest.mark.parametrize("kept", [False, True])
def test_a_pass_can_be_resumed_at_any_step(local: Context, files: list[str], kept: bool):
    def data() -> tf.data.Dataset:
        rows = tf.data.TFRecordDataset(files).map(parsed)
        return (rows.cache() if kept else rows).shuffle(50, seed=1).batch(7)

    whole = streamed(local, data(), 2, epochs=3)
    resumed = streamed(local, data(), 2, epochs=3, first=(1, 4))
    assert [rank[4:] for rank in whole[1]] == resumed[0]
    assert whole[2] == resumed[1]
    assert whole[0] != whole[1]


def test_elements_are_those_of_the_numpy_iterator_and_share_its_memory():
    x = np.arange(20, dtype="f4").reshape(10, 2)
    parts = {"z": x, "a": (x[:, 0].astype("i8"), {"d": x > 3, "b": np.array([b"one", b"two"] * 5)})}
    for data in (parts, (parts, x[:, 0]), x):
        dataset = tf.data.Dataset.from_tensor_slices(data)
        for rows in (dataset, dataset.batch(4)):
            ours, theirs = list(elements(rows)), list(rows.as_numpy_iterator())
            assert len(ours) == len(theirs)
            for one, other in zip(ours, theirs, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, one, other)
                assert str(one) == str(other), "keys keep their order"
    pieces = list(elements(tf.data.Dataset.from_tensors(x)))
    assert not pieces[0].flags.writeable
    assert not pieces[0].flags.owndata


def test_a_killed_fit_resumes_within_an_epoch(local: Context, files: list[str], tmp_path: Path):
    whole = make(2)
    history = whole.fit(pipeline(files), epochs=3, batch_size=BATCH, validation_data=pipeline(files[:1]))
    assert history["rows"] == [RECORDS] * 3
    est = make(2, model_dir=str(tmp_path / "model"))
    options = {"epochs": 3, "batch_size": BATCH, "validation_data": pipeline(files[:1])}
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        est.fit(pipeline(files), checkpoint_trigger=SeveralIteration(4), callbacks=[Fault("kill", 1, 18)], **options)
    resumed = est.fit(pipeline(files), resume=True, **options)
    np.testing.assert_array_equal(weights(est), weights(whole))
    assert resumed["val_loss"][-1] == history["val_loss"][-1]


def test_creators_run_on_the_ranks_in_turn(local: Context, files: list[str], tmp_path: Path):
    log = tmp_path / "log"

    def numbers() -> Any:
        for number in range(101):
            yield np.full(WIDTH, number / 100, "f4"), number / 100

    def creator(config: dict[str, Any], batch_size: int) -> tf.data.Dataset:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {batch_size}\n")
        signature = tf.TensorSpec((WIDTH,), tf.float32), tf.TensorSpec((), tf.float32)
        return tf.data.Dataset.from_generator(numbers, output_signature=signature).shuffle(20)

    with pytest.raises(DataError, match=r"calls Python functions.*Give a function fn\(config, batch_size\)"):
        make(2).fit(creator({}, 8), batch_size=8)
    log.unlink()
    scores = []
    for workers in (1, 2):
        est = make(workers)
        history = est.fit(creator, epochs=2, batch_size=BATCH, validation_data=creator)
        assert history["rows"] == [101, 101]
        scores.append([history["loss"], history["val_loss"], est.evaluate(creator)["loss"], weights(est)])
    for one, other in zip(*scores, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert str(os.getpid()) not in log.read_text()
    assert sorted(flat(streamed(local, creator, 2, creator_arguments=({}, 8))[0])) == list(range(101))


def test_pipelines_without_an_end_need_a_number_of_steps(local: Context, files: list[str]):
    dataset = pipeline(files).repeat()
    with pytest.raises(DataError, match=r"never ends.*steps_per_epoch="):
        make(2).fit(dataset, batch_size=BATCH)
    with pytest.raises(WorkerError, match=r"never ends.*steps_per_epoch="):
        make(2).fit(lambda config: pipeline(files).repeat(), batch_size=BATCH)
    with pytest.raises(DataError, match="never ends"):
        make(2).evaluate(dataset)
    assert make(2).fit(dataset, batch_size=BATCH, epochs=2, steps_per_epoch=20)["rows"] == [320, 320]
    unknown = pipeline(files).filter(lambda x, y: y < 1)
    assert make(2).fit(unknown, batch_size=BATCH, epochs=2)["rows"] == [100, 100]
    assert make(2).fit(unknown, batch_size=BATCH, max_steps=3)["rows"] == [48]
