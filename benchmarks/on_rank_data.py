"""Benchmarks data that is read on the ranks against hand-written programs over the same data.

(1) JPEG files decoded by a torch DataLoader with num_workers=2, two ranks: a loop with DistributedDataParallel and
    DistributedSampler
(2) TFRecord files through tf.data with shuffle and map, one worker: plain `model.fit`

Both sides train the same model, in interleaved runs. Rates are those of whole epochs after the first one, which starts
loader processes and compiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from comparing import Comparison, chosen, facts, measure, take_turns
from programs import answers_of, report, with_threads

WORLD, LOADERS, BATCH, IMAGE, CROP = 2, 2, 64, 144, 64
FEATURES, KERAS_BATCH, SHUFFLE, FILES = 64, 256, 4096, 4
BAR = 0.95


# (1) Images with torch -----------------------------------------------------------------------------------------------


def write_images(folder: str, count: int) -> None:
    """Write JPEG files of smooth random colors, which compress like photographs."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype="u1"))
        small.resize((IMAGE, IMAGE), Image.Resampling.BICUBIC).save(f"{folder}/{number}.jpg", quality=90)


class Images(Dataset[Any]):
    """JPEG files with a random crop."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch
        from PIL import Image

        top, left = torch.randint(0, IMAGE - CROP, (2,)).tolist()
        with Image.open(self.paths[index]) as image:
            pixels = np.asarray(image.convert("RGB"))[top : top + CROP, left : left + CROP]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255), index % 10


def convolutions(config: dict[str, Any]) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def ddp_rank(rank: int, port: int, folder: str, epochs: int, out: Any) -> None:
    """One rank of the hand-written loop."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=WORLD
    )
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(convolutions({}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = Images(folder)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, WORLD, rank)
    loader = DataLoader(
        dataset, batch_size=BATCH // WORLD, sampler=sampler, num_workers=LOADERS, persistent_workers=True
    )
    loss_of, rates = nn.CrossEntropyLoss(), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start, total = time.perf_counter(), 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        rates.append(len(dataset) / (time.perf_counter() - start))
    if rank == 0:
        out.put(rates)
    dist.destroy_process_group()


def ddp(folder: str, epochs: int) -> float:
    import torch.distributed as dist
    import torch.multiprocessing as mp

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    out = mp.get_context("spawn").SimpleQueue()
    mp.spawn(ddp_rank, args=(store.port, folder, epochs, out), nprocs=WORLD)
    return statistics.median(out.get()[1:])


def orca_images(folder: str, epochs: int) -> float:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from orca import Estimator

    est = Estimator.from_torch(
        model=convolutions, optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
        config={"lr": 0.01}, workers=WORLD, seed=0,
    )  # fmt: skip
    history = est.fit(DataLoader(Images(folder), batch_size=BATCH, num_workers=LOADERS), epochs=epochs)
    return statistics.median(history["rows_per_s"][1:])


def images(count: int, epochs: int, turns: int) -> list[str]:
    from orca import init_orca_context, stop_orca_context

    init_orca_context(cores=WORLD)
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, count)
        sides = {"Orca, DataLoader": lambda: orca_images(folder, epochs), "DDP loop": lambda: ddp(folder, epochs)}
        results = take_turns(sides, turns, "rows/s")
    stop_orca_context()
    return Comparison("1", "JPEG files, DataLoader, two ranks", *sides, BAR).lines(results)


# (2) TFRecord files with Keras ---------------------------------------------------------------------------------------


def write_records(folder: str, rows: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    for number in range(FILES):
        with tf.io.TFRecordWriter(f"{folder}/{number}.tfrecord") as writer:
            for row in rng.standard_normal((rows // FILES, FEATURES), dtype="f4"):
                values = tf.train.Feature(float_list=tf.train.FloatList(value=row))
                features = tf.train.Features(feature={"x": values})
                writer.write(tf.train.Example(features=features).SerializeToString())


def pipeline(folder: str) -> Any:
    """Return the records as a tf.data pipeline with shuffle and map."""
    import tensorflow as tf

    def parse(record: Any) -> Any:
        x = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([FEATURES], tf.float32)})["x"]
        return x, tf.cast(tf.reduce_sum(x) > 0, tf.int64)

    files = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    rows = tf.data.TFRecordDataset(files).shuffle(SHUFFLE).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return rows.batch(KERAS_BATCH).prefetch(tf.data.AUTOTUNE)


def plain_fit(folder: str, rows: int, epochs: int, threads: int) -> None:
    """Train with `model.fit` in this process, and print the rates of the epochs."""
    import keras
    import tensorflow as tf
    from keras_peers import model_creator

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rates: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rates.append(rows / (time.perf_counter() - self.start))

    model = model_creator({})
    history = model.fit(pipeline(folder), epochs=epochs, verbose=0, callbacks=[Clock()])
    report(rates, history.history["loss"][-1])


def orca_records(folder: str, epochs: int) -> float:
    from keras_peers import model_creator

    from orca import Estimator

    est = Estimator.from_keras(model_creator=model_creator, workers=1, seed=0)
    history = est.fit(pipeline(folder), epochs=epochs, batch_size=KERAS_BATCH)
    return statistics.median(history["rows_per_s"][1:])


def records(rows: int, epochs: int, turns: int) -> list[str]:
    from orca import init_orca_context, stop_orca_context
    from orca.core.machine import usable_cpus

    init_orca_context(cores=WORLD)
    threads = usable_cpus()
    rows -= rows % FILES
    with tempfile.TemporaryDirectory() as folder:
        write_records(folder, rows)
        options = ["--rows", str(rows), "--epochs", str(epochs), "--threads", str(threads)]
        command = [sys.executable, __file__, "--plain", folder, *options]

        def alone() -> float:
            answer = answers_of([command], [with_threads(threads)], 1)[0]
            return statistics.median(answer["rows_per_s"][1:])

        sides = {"Orca, tf.data on the rank": lambda: orca_records(folder, epochs), "model.fit": alone}
        results = take_turns(sides, turns, "rows/s")
    stop_orca_context()
    return Comparison("2", "TFRecord files, tf.data, one worker", *sides, BAR).lines(results)


SECTIONS = ("1", "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 1,2")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain is not None:
        plain_fit(options.plain, options.rows, options.epochs, options.threads)
        return
    head = [facts(["torch", "tensorflow-cpu", "keras", "pillow"], f"{WORLD} ranks with 1 thread each")]
    measure(
        [
            ({"1"}, lambda: images(options.images, options.epochs, options.turns)),
            ({"2"}, lambda: records(options.rows, options.epochs, options.turns)),
        ],
        chosen(options.only, SECTIONS),
        head,
    )


if __name__ == "__main__":
    main()
