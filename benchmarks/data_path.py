"""Benchmarks Orca's data paths against the usual alternatives: Spark to ranks, transforms, CSV files, the feed.

(a) a Spark DataFrame to batches on two ranks, against toPandas() with Arrow and against Parquet files
(b) XShards transform + collect, against Ray Data map_batches + take_all and against numpy in one process
(c) read_csv of a large file, against pandas and pyarrow alone
(d) the feed's shuffled batches, against x[perm[i:i+b]] on one array

Each line is the median of several interleaved runs. Peak is the additional memory over all processes.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orca import XShards, init_orca_context, stop_orca_context
from orca.shards.adapters.base import Form
from orca.shards.adapters.registry import adapt
from orca.shards.feed import Feed, InMemory, Rows
from tests.memory import Peak, family_pss

LINES: list[str] = []


def measure(title: str, size: int, sides: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Time interleaved runs of the sides and print a line for each; the first side is ours."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    peaks: dict[str, int] = dict.fromkeys(sides, 0)
    for turn in range(turns + 1):
        for name, side in sides.items():
            gc.collect()
            base = family_pss()
            with Peak(0.1) as watch:
                start = time.perf_counter()
                side()
                spent = time.perf_counter() - start
            if turn:  # the first turn warms everything up
                seconds[name].append(spent)
                peaks[name] = max(peaks[name], watch.peak - base)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ours = next(iter(medians.values()))
    for name, value in medians.items():
        line = (
            f"{title:<34} {name:<28} {value:>8.3f} s {size / value / 1e6:>9,.0f} MB/s "
            f"{max(peaks[name], 0) / 2**20:>7,.0f} MB  {value / ours:>6.2f} x our time"
        )
        LINES.append(line)
        print(line, flush=True)
    return medians


def count_batches(context: Any, batch_size: int) -> int:
    """Iterate over one shuffled epoch on a rank."""
    place = context.place
    rows = Rows(context.sources["data"])
    feed = Feed(rows, rank=place.rank, world=place.world, batch_size=batch_size)
    return sum(batch.rows for batch in feed.epoch(0))


def spark_frames(rows: int, turns: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    context = init_orca_context(runtime="spark", cores=2, memory="2g")
    spark = context.spark
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    with tempfile.TemporaryDirectory() as folder:
        values = np.random.default_rng(0).random((rows, 64), dtype="f4")
        offsets = pa.array(np.arange(0, rows * 64 + 1, 64, dtype="i4"))
        lists = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
        pq.write_table(pa.table({"features": lists, "label": np.zeros(rows, "i8")}), f"{folder}/array.parquet")
        columns = {f"c{i}": values[:, i] for i in range(64)}
        pq.write_table(pa.table({**columns, "label": np.zeros(rows, "i8")}), f"{folder}/columns.parquet")
        for kind, features in (("array", "features"), ("columns", [f"c{i}" for i in range(64)])):
            frame = spark.read.parquet(f"{folder}/{kind}.parquet").repartition(4).cache()
            frame.count()

            def to_ranks(frame: Any = frame, features: Any = features) -> None:
                form = Form(feature_cols=features, label_cols="label")
                shards = adapt(frame).shards(form, context.engine)
                counts = context.gang(2).call(count_batches, 256, sources={"data": shards})
                assert sum(counts) == rows

            def to_pandas(frame: Any = frame, kind: str = kind) -> None:
                table = frame.toPandas()
                x = np.stack(table["features"]) if kind == "array" else table.drop(columns="label").to_numpy()
                batches(x.astype("f4", copy=False))

            def by_parquet(frame: Any = frame, kind: str = kind) -> None:
                with tempfile.TemporaryDirectory() as out:
                    frame.write.mode("overwrite").parquet(f"{out}/p")
                    table = pq.read_table(f"{out}/p")
                    if kind == "array":
                        x = table.column("features").combine_chunks().flatten().to_numpy().reshape(-1, 64)
                    else:
                        x = np.column_stack([table.column(f"c{i}").to_numpy() for i in range(64)])
                    batches(x)

            title = f"(a) Spark {kind} to batches"
            sides = {"Orca: two ranks": to_ranks, "toPandas, one process": to_pandas, "Parquet out and in": by_parquet}
            measure(title, values.nbytes, sides, turns)
            frame.unpersist()
    stop_orca_context()


def batches(x: np.ndarray[Any, Any], size: int = 256) -> int:
    """Iterate over one shuffled epoch of one array."""
    order = np.random.default_rng(0).permutation(len(x))
    rows = 0
    for start in range(0, len(x), size):
        rows += len(x[order[start : start + size]])
    return rows


def transforms(rows: int, turns: int) -> None:
    import ray
    import ray.data

    values = np.random.default_rng(0).random((rows, 64), dtype="f4")

    def work(x: Any) -> Any:
        return np.sqrt(x) * 2 + 1

    def alone() -> None:
        pieces = np.array_split(values, 4)
        np.concatenate([work(piece) for piece in pieces])

    init_orca_context(cores=2)
    shards = XShards.partition(values, num_shards=4)

    def local() -> None:
        init_orca_context(cores=2)
        shards.transform_shard(work).collect()

    measure("(b) transform + collect, local", values.nbytes, {"Orca local": local, "numpy, one process": alone}, turns)
    stop_orca_context()
    init_orca_context(runtime="ray", cores=2)
    ray.data.DataContext.get_current().enable_progress_bars = False
    on_ray = XShards.partition(values, num_shards=4)
    dataset = ray.data.from_numpy(np.array_split(values, 4)).materialize()

    def ours() -> None:
        on_ray.transform_shard(work).collect()

    def theirs() -> None:
        dataset.map_batches(lambda batch: {"data": work(batch["data"])}, batch_size=None).take_all()

    def theirs_whole() -> None:
        refs = dataset.map_batches(lambda batch: {"data": work(batch["data"])}, batch_size=None).to_numpy_refs()
        ray.get(refs)

    sides = {"Orca on Ray": ours, "Ray Data take_all (rows)": theirs, "Ray Data to_numpy_refs": theirs_whole}
    measure("(b) transform + collect, Ray", values.nbytes, sides, turns)
    stop_orca_context()


def csv_files(megabytes: int, turns: int) -> None:
    import pandas as pd
    import pyarrow.csv as pc

    from orca.data import read_csv

    init_orca_context(cores=2)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/large.csv"
        block = pd.DataFrame(np.random.default_rng(0).random((50_000, 8)).round(6), columns=list("abcdefgh"))
        block["id"] = np.arange(len(block))
        text = block.to_csv(index=False)
        head, _, body = text.partition("\n")
        with open(path, "w") as file:
            file.write(head + "\n")
            while file.tell() < megabytes << 20:
                file.write(body)
        size = os.path.getsize(path)
        sides = {
            "Orca read_csv": lambda: read_csv(path).cache(),
            "pandas.read_csv": lambda: pd.read_csv(path),
            "pandas, pyarrow engine": lambda: pd.read_csv(path, engine="pyarrow"),
            "pyarrow.csv": lambda: pc.read_csv(path),
        }
        measure(f"(c) read_csv, {size >> 20} MB", size, sides, turns)
    stop_orca_context()


def feed(rows: int, turns: int) -> None:
    values = np.random.default_rng(0).random((rows, 64), dtype="f4")
    source = Rows([InMemory({"x": values})])

    def ours() -> None:
        stream = Feed(source, rank=0, world=1, batch_size=256)
        assert sum(batch.rows for batch in stream.epoch(0)) == rows

    medians = measure(
        "(d) feed, batches of 256", values.nbytes, {"Orca feed": ours, "x[perm[i:i+b]]": lambda: batches(values)}, turns
    )
    ours_seconds, theirs = medians.values()
    line = f"(d) throughput of the feed relative to x[perm[i:i+b]]: {theirs / ours_seconds:.2f} (at least 0.9)"
    LINES.append(line)
    print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--csv-megabytes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="abcd", help="which parts to run")
    options = parser.parse_args()
    if "d" in options.only:
        feed(options.rows * 2, options.turns + 2)
    if "b" in options.only:
        transforms(options.rows, options.turns)
    if "c" in options.only:
        csv_files(options.csv_megabytes, options.turns)
    if "a" in options.only:
        spark_frames(options.rows, options.turns)
    print("\n" + "\n".join(LINES))


if __name__ == "__main__":
    main()
