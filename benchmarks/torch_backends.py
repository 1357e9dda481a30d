"""Benchmarks the PyTorch backends against the usual alternatives: training, DataFrame to model, predictions.

1   steady-state rows/s of two local workers, from the second epoch on
1a    torch_distributed, against hand-written DDP                        at least 0.98
1b    horovod, against hand-written Horovod                              at least 0.95
1c    parameter_server (synchronous), against hand-written DDP           at least 0.9
2   seconds from a DataFrame to a trained model, on a runtime that is already running
2a    on Ray from a Ray Dataset, against Ray Train                       at most 0.6
2p    on Ray from a pandas DataFrame, against Ray Train                  at most 0.6
2b    on Spark from a cached DataFrame, against Spark's TorchDistributor at most 0.6
      and, if both were measured, each against the faster of the two peers
3   rows/s of predictions as a column of a Spark DataFrame, against predict_batch_udf: at least 1.5
4   rows/s of predictions as a column of a Ray Dataset, against map_batches: at least 1.0

The runs of a section are interleaved; results are medians over the turns, and the median of the ratios within a turn.
In 1 and 2 every other turn runs in reverse order. In 2 all ranks restart in each turn, but only the first turn starts
with a Spark without Python workers. In 3 and 4 each turn calls a side twice: the second call counts, the first is
shown too. torch_peers.py contains the other sides.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Processes of Ray, Spark and torchrun import the peers by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import torch_peers as peers  # noqa: E402
from comparing import (  # noqa: E402
    Comparison,
    Numbers,
    Part,
    Side,
    called_twice,
    chosen,
    facts,
    measure,
    seconds_of,
    take_turns,
)

from orca import Estimator, init_orca_context, stop_orca_context  # noqa: E402
from orca.core.machine import usable_cpus  # noqa: E402
from orca.runtimes import spark_settings  # noqa: E402

SECTIONS = ("1a", "1b", "1c", "2a", "2p", "2b", "3", "4")
EPOCHS_FROM_FRAME = 2
BLOCKS = 4
"""Blocks of the Ray Dataset and partitions of the Spark DataFrame."""
THREADS = max(1, usable_cpus() // peers.WORLD)
"""Threads of a hand-written rank, as many as Orca's ranks have."""


def estimator(backend: str = "torch_distributed") -> Estimator:
    return Estimator.from_torch(
        model=peers.Mlp,
        optimizer=lambda model, config: peers.sgd(model),
        loss=nn.CrossEntropyLoss(),
        config={},
        backend=backend,
        workers=peers.WORLD,
        seed=peers.SEED,
    )


# 1: steady training --------------------------------------------------------------------------------------------------

STEADY = (
    Comparison("1a", "steady training, torch_distributed", "Orca torch_distributed", "hand-written DDP", 0.98),
    Comparison("1b", "steady training, horovod", "Orca horovod", "hand-written Horovod", 0.95),
    Comparison("1c", "steady training, parameter_server", "Orca parameter_server", "hand-written DDP", 0.9),
)


def steady(sections: set[str], options: argparse.Namespace) -> list[str]:
    x, y = peers.make_rows(options.rows)
    losses: dict[str, float] = {}

    def ours(backend: str) -> float:
        init_orca_context(cores=peers.WORLD)
        try:
            history = estimator(backend).fit(x, y, epochs=options.epochs, batch_size=options.batch_size, progress=False)
        finally:
            stop_orca_context()
        losses[f"Orca {backend}"] = history["loss"][-1]
        return statistics.median(history["rows_per_s"][1:])

    def by_hand(name: str, train: Any, folder: str) -> float:
        rates, losses[name] = train(folder, options.epochs, options.batch_size, THREADS)
        return statistics.median(rates[1:])

    compared = [one for one in STEADY if one.section in sections]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        np.save(f"{folder}/y.npy", y)
        every: dict[str, Side] = {
            "hand-written DDP": lambda: by_hand("hand-written DDP", peers.ddp_by_hand, folder),
            "Orca torch_distributed": lambda: ours("torch_distributed"),
            "Orca parameter_server": lambda: ours("parameter_server"),
            "hand-written Horovod": lambda: by_hand("hand-written Horovod", peers.horovod_by_hand, folder),
            "Orca horovod": lambda: ours("horovod"),
        }
        needed = {side for one in compared for side in (one.ours, one.peer)}
        results = take_turns({name: side for name, side in every.items() if name in needed}, options.turns, "rows/s")
    print(f"  loss of the last epoch (hand-written: rank 0's): { {k: round(v, 4) for k, v in losses.items()} }")
    return [line for one in compared for line in one.lines(results)]


# 2: from a DataFrame to a trained model ------------------------------------------------------------------------------


def start_ray(cpus: int) -> Any:
    import ray
    import ray.data

    # Otherwise Ray's accelerator probe warns at each start that CPU actors see no GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


def ray_dataset(x: Any, y: Any) -> Any:
    """Create blocks in Ray's preferred form: Arrow with a tensor column."""
    import ray.data

    def name(batch: dict[str, Any]) -> dict[str, Any]:
        return {"features": batch["data"][:, :-1].copy(), "label": batch["data"][:, -1].astype("i8")}

    joined = np.column_stack([x, y.astype("f4")])
    return ray.data.from_numpy(np.array_split(joined, BLOCKS)).map_batches(name, batch_size=None).materialize()


def start_spark() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{peers.WORLD}]").appName("torch_backends")
    for key, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **spark_settings(),  # as in a session that Orca starts
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    return session


def arrow_table(x: Any, y: Any) -> Any:
    import pyarrow as pa

    offsets = pa.array(np.arange(0, x.size + 1, x.shape[1], dtype="i4"))
    return pa.table({"features": pa.ListArray.from_arrays(offsets, pa.array(x.reshape(-1))), "label": y})


def spark_frame(session: Any, x: Any, y: Any) -> Any:
    frame = session.createDataFrame(arrow_table(x, y)).repartition(BLOCKS).cache()
    frame.count()
    return frame


def from_frames(sections: set[str], options: argparse.Namespace) -> list[str]:
    x, y = peers.make_rows(options.rows)
    sides: dict[str, Side] = {}
    compared: list[Comparison] = []

    def ours(runtime: str, data: Any) -> float:
        """Time everything from creating the estimator to its trained model, on a running runtime."""
        init_orca_context(runtime=runtime)

        def work() -> None:
            est = estimator()
            columns = {"feature_cols": ["features"], "label_cols": "label"}
            est.fit(data, **columns, epochs=EPOCHS_FROM_FRAME, batch_size=options.batch_size, progress=False)
            est.get_model()

        try:
            return seconds_of(work)
        finally:
            stop_orca_context()  # ends the ranks, so that each turn starts new ones

    def ray_train(data: Callable[[], Any]) -> float:
        return seconds_of(lambda: peers.ray_train(data(), EPOCHS_FROM_FRAME, options.batch_size))

    def distributor(data: Any) -> float:
        local_mode = not options.distributor_on_executors
        return seconds_of(lambda: peers.torch_distributor(data, EPOCHS_FROM_FRAME, options.batch_size, local_mode))

    # Ray Train's workers hold one CPU each while they train; Ray Data may need more.
    ray = start_ray(2 * peers.WORLD) if sections & {"2a", "2p"} else None
    session = start_spark() if "2b" in sections else None
    try:
        if "2a" in sections:
            dataset = ray_dataset(x, y)
            sides["Orca on Ray, Ray Dataset"] = lambda: ours("ray", dataset)
            sides["Ray Train, Ray Dataset"] = lambda: ray_train(lambda: dataset)
            compared.append(
                _seconds("2a", "Ray Dataset to model", "Orca on Ray, Ray Dataset", "Ray Train, Ray Dataset")
            )
        if "2p" in sections:
            import pandas as pd

            table = pd.DataFrame({"features": list(x), "label": y})
            sides["Orca on Ray, pandas"] = lambda: ours("ray", table)
            sides["Ray Train, pandas"] = lambda: ray_train(lambda: ray.data.from_pandas(table))
            compared.append(_seconds("2p", "pandas DataFrame to model", "Orca on Ray, pandas", "Ray Train, pandas"))
        if "2b" in sections:
            frame = spark_frame(session, x, y)
            sides["Orca on Spark"] = lambda: ours("spark", frame)
            sides["TorchDistributor"] = lambda: distributor(frame)
            compared.append(_seconds("2b", "Spark DataFrame to model", "Orca on Spark", "TorchDistributor"))
        results = take_turns(sides, options.turns, "s")
    finally:
        if session is not None:
            session.stop()
        if ray is not None:
            ray.shutdown()
    return [line for one in [*compared, *_overall(results)] for line in one.lines(results)]


def _seconds(section: str, title: str, ours: str, peer: str) -> Comparison:
    return Comparison(section, title, ours, peer, 0.6, "s")


def _overall(results: Numbers) -> list[Comparison]:
    """Compare each of our sides with the fastest peer of any runtime."""
    rivals = [name for name in results if not name.startswith("Orca")]
    if len({name.split(",")[0] for name in rivals}) < 2:
        return []
    best = min(rivals, key=lambda name: statistics.median(results[name]))
    ours = [name for name in results if name.startswith("Orca")]
    return [_seconds("2", f"overall, {name.removeprefix('Orca ')}, faster peer", name, best) for name in ours]


# 3 and 4: predictions ------------------------------------------------------------------------------------------------


def trained(x: Any, y: Any) -> Estimator:
    """Return an estimator trained briefly on the context's runtime."""
    est = estimator()
    est.fit(x[:2_000], y[:2_000], batch_size=256, progress=False)
    return est


def predict_on_spark(options: argparse.Namespace) -> list[str]:
    x, y = peers.make_rows(options.rows)
    session = start_spark()
    try:
        frame = spark_frame(session, x, y)
        init_orca_context(runtime="spark")
        est = trained(x, y)
        model = est.get_model()

        def ours(rows: Any) -> Any:
            return est.predict(rows, feature_cols=["features"], batch_size=options.batch_size)

        def compute(predicted: Any) -> None:
            predicted.write.format("noop").mode("overwrite").save()

        few = spark_frame(session, x[:200], y[:200])
        check_same(ours(few).toPandas(), peers.spark_predict(few, model, options.batch_size).toPandas())
        # Created once, because a new one would load its model again.
        theirs = peers.spark_predict(frame, model, options.batch_size)
        works = {"Orca on Spark": lambda: compute(ours(frame)), "predict_batch_udf": lambda: compute(theirs)}
        return called_twice("3", "predict, Spark DataFrame", works, 1.5, options.rows, options.turns)
    finally:
        stop_orca_context()
        session.stop()


def predict_on_ray(options: argparse.Namespace) -> list[str]:
    x, y = peers.make_rows(options.rows)
    ray = start_ray(peers.WORLD)
    try:
        dataset = ray_dataset(x, y)
        init_orca_context(runtime="ray")
        est = trained(x, y)
        model = est.get_model()
        est.shutdown()  # ends its ranks, so that they hold no CPU

        def ours(rows: Any) -> Any:
            predicted = est.predict(rows, feature_cols=["features"], batch_size=options.batch_size)
            return predicted.materialize()

        def theirs(rows: Any) -> Any:
            return peers.ray_predict(rows, model, options.batch_size).materialize()

        few = ray_dataset(x[:200], y[:200])
        check_same(ours(few).to_pandas(), theirs(few).to_pandas())
        works = {"Orca on Ray": lambda: ours(dataset), "map_batches": lambda: theirs(dataset)}
        return called_twice("4", "predict, Ray Dataset", works, 1.0, options.rows, options.turns)
    finally:
        stop_orca_context()
        ray.shutdown()


def check_same(ours: Any, theirs: Any) -> None:
    """Check that both sides predict the same for the same rows, in any order."""
    expected = {row[0]: value for row, value in zip(ours["features"], ours["prediction"], strict=True)}
    assert len(expected) == len(theirs), "the two sides return different rows"
    pairs = [(expected[row[0]], value) for row, value in zip(theirs["features"], theirs["prediction"], strict=True)]
    assert all(np.allclose(one, other, atol=1e-4) for one, other in pairs), "the two sides predict different numbers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4, help="epochs of the steady sections; the first is not counted")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 1a,2b or 1,3")
    parser.add_argument(
        "--distributor-on-executors",
        action="store_true",
        help="run TorchDistributor with local_mode=False, which was slower when tried here",
    )
    options = parser.parse_args()
    sections = chosen(options.only, SECTIONS)
    packages = ("torch", "horovod", "ray", "pyspark", "pyarrow", "pandas", "numpy")
    head = [
        f"{options.rows:,} rows x {peers.FEATURES} float32, batch {options.batch_size} over {peers.WORLD} workers, "
        f"{options.turns} turns",
        facts(packages, f"{THREADS} thread{'s' if THREADS > 1 else ''} per rank"),
    ]
    parts: list[Part] = [
        ({"1a", "1b", "1c"}, lambda: steady(sections, options)),
        ({"2a", "2p", "2b"}, lambda: from_frames(sections, options)),
        ({"3"}, lambda: predict_on_spark(options)),
        ({"4"}, lambda: predict_on_ray(options)),
    ]
    measure(parts, sections, head)


if __name__ == "__main__":
    main()
