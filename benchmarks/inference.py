"""Benchmarks predictions of OpenVINO estimators against the usual alternatives, on a small and a larger network.

s, l   the small convolutional network, EfficientNet-Lite0 with its ImageNet weights
1s 1l  est.predict on an array, against a hand-written AsyncInferQueue        at least 0.98
2s 2l  est.predict on an array, against OpenVINO's benchmark_app              at least 0.95
3s 3l  est.predict on a Spark DataFrame, against predict_batch_udf            at least 1.5
4s 4l  est.predict on a Ray Dataset, against map_batches                      at least 1.0
5s 5l  a torch estimator with accelerator="openvino", against without         no bar

All sides have the same model, batch size, precision (f32) and threads. Each combination of data and network runs in a
separate process, so that none is affected by leftovers of another. The runs of a section are interleaved, in 1 and 2
with every other turn in reverse order; results are medians over the turns, and the median of the ratios within a turn.
Each side is called once before it is measured. In 3 to 5 each turn calls a side twice: the second call counts; the
first, which follows the other side, is shown too.

Peak memory comes from one more run of each side: the memory of this process and its descendants, with shared pages
counted once and the warm processes of both sides included, and the part of it that the run added. A side that starts
processes for each run (map_batches) adds them; one that keeps them (Orca) has them in the first number. The time to
the first row is for a new model: Orca with a new estimator and an empty cache, its peers with a new compilation; in a
new process for arrays and torch, in a running Spark or Ray for DataFrames.

Section 3 also prints the upper limit that the cores allow, from the throughput of the model alone and that of the
transfer to Python and back. Its last lines have no bar: predict_batch_udf with a model compiled with OpenVINO's default
threads, and then with the default precision as well, for both sides. inference_peers.py contains the other sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# Processes of Ray and Spark import the peers by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))

import inference_peers as peers  # noqa: E402
from comparing import Comparison, Part, Side, called_twice, chosen, facts, measure, seconds_of, take_turns  # noqa: E402
from torch_backends import start_ray, start_spark  # noqa: E402

from orca import Estimator, init_orca_context, stop_orca_context  # noqa: E402
from orca.core.machine import usable_cpus  # noqa: E402

CORES = usable_cpus()
SECTIONS = tuple(f"{number}{size}" for number in range(1, 6) for size in "sl")
BLOCKS = 4
"""Blocks of the Ray Dataset and partitions of the Spark DataFrame."""
APP_SECONDS = 5

FIRST_ROW = """
import sys, time
import numpy as np
row = np.zeros((1, {row}), "f4")
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
"""
FIRST_ROWS = {
    "Orca": (
        "from orca import Estimator\n"
        "Estimator.from_openvino(model_path={path!r}, config={{'cache_dir': {cache!r}}}).predict(row)"
    ),
    "torch": (
        "import inference_peers\nfrom orca import Estimator\n"
        "est = Estimator.from_torch(model=inference_peers.Net({name!r}, {shape}, 1, 1).make(), workers=1)\n"
        "est.predict(row)"
    ),
    "torch, OpenVINO": (
        "import inference_peers\nfrom orca import Estimator\n"
        "est = Estimator.from_torch(model=inference_peers.Net({name!r}, {shape}, 1, 1).make(), workers=1)\n"
        "est.predict(row, accelerator='openvino')"
    ),
    "AsyncInferQueue": "import inference_peers\ninference_peers.first_row_by_hand({path!r}, {threads}, row)",
}


class Peak:
    """Peak memory of this process and its descendants within a context."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.bytes = max(self.bytes, memory_in_use())

    def __enter__(self) -> Peak:
        self.bytes = memory_in_use()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def memory_in_use() -> int:
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def peak_of(work: Callable[[], Any]) -> str:
    """Describe the peak memory while something runs, and how much of it was added."""
    before = memory_in_use()
    with Peak() as peak:
        work()
    return f"peak memory {peak.bytes / 2**20:,.0f} MB, {max(0, peak.bytes - before) / 2**20:,.0f} of them new"


def memory_and_latency(works: dict[str, Callable[[], Any]], first: dict[str, Callable[[], float]]) -> list[str]:
    """Return a line for each side with its peak memory and its seconds to the first row."""
    lines = []
    for name, work in works.items():
        values = [peak_of(work)]
        if name in first:
            values.append(f"first row after {first[name]():.2f} s")
        lines.append(f"            {name:<38} {', '.join(values)}")
    return lines


def rate(work: Callable[[], Any], rows: int) -> Side:
    return lambda: rows / seconds_of(work)


def exported(net: peers.Net, folder: str) -> str:
    """Export the network to OpenVINO's files and return the path."""
    return Estimator.from_torch(model=net.make()).export(
        "openvino", f"{folder}/{net.name}", np.zeros((2, *net.row), "f4")
    )


def first_row(kind: str, path: str, net: peers.Net) -> float:
    """Return the seconds to one row in a new process that has imported only numpy."""
    with tempfile.TemporaryDirectory() as cache:
        work = FIRST_ROWS[kind].format(path=path, threads=CORES, cache=cache, name=net.name, shape=net.row)
        code = FIRST_ROW.format(row=", ".join(map(str, net.row)), work=work)
        environment = {**os.environ, "ORCA_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, env=environment
        )
    return float(done.stdout.split()[-1])


def uncached(path: str, folder: str) -> Estimator:
    """Create an estimator with an empty compilation cache."""
    return Estimator.from_openvino(model_path=path, config={"cache_dir": tempfile.mkdtemp(dir=folder)})


# 1, 2: arrays --------------------------------------------------------------------------------------------------------


def arrays(net: peers.Net, size: str, sections: set[str], options: argparse.Namespace) -> list[str]:
    x = net.data()
    with tempfile.TemporaryDirectory() as folder:
        path = exported(net, folder)
        init_orca_context(cores=CORES)
        try:
            est = Estimator.from_openvino(model_path=path)
            by_hand = peers.async_queue(path, net.batch, CORES)
            works = {
                "AsyncInferQueue by hand": lambda: by_hand(x),
                "Orca, array": lambda: est.predict(x, batch_size=net.batch),
            }
            ours, theirs = works["Orca, array"](), works["AsyncInferQueue by hand"]()
            assert np.abs(ours - theirs).max() < 1e-4, "the two sides predict different numbers"
            sides = {name: rate(work, net.rows) for name, work in works.items()}
            if f"2{size}" in sections:
                sides["benchmark_app"] = lambda: peers.benchmark_app(path, net, APP_SECONDS)
            results = take_turns(sides, options.turns, "rows/s")
            details = memory_and_latency(
                works,
                {
                    "Orca, array": lambda: first_row("Orca", path, net),
                    "AsyncInferQueue by hand": lambda: first_row("AsyncInferQueue", path, net),
                },
            )
        finally:
            stop_orca_context()
    compared = [
        Comparison(f"1{size}", f"array, {net.name}", "Orca, array", "AsyncInferQueue by hand", 0.98),
        Comparison(f"2{size}", f"array, {net.name}", "Orca, array", "benchmark_app", 0.95),
    ]
    return [line for one in compared if one.section in sections for line in one.lines(results)] + details


# 3, 4: frames --------------------------------------------------------------------------------------------------------


def flat_table(x: Any) -> Any:
    import pyarrow as pa

    width = int(np.prod(x.shape[1:]))
    offsets = pa.array(np.arange(0, x.size + 1, width, dtype="i4"))
    return pa.table({"features": pa.ListArray.from_arrays(offsets, pa.array(x.reshape(-1)))})


def on_spark(net: peers.Net, size: str, options: argparse.Namespace) -> list[str]:
    x = net.data()
    session = start_spark()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = exported(net, folder)
            flat_parquet(x, f"{folder}/rows")
            frame = session.read.parquet(f"{folder}/rows").cache()
            assert frame.count() == net.rows
            init_orca_context(runtime="spark")
            est = Estimator.from_openvino(model_path=path)

            # Both are lazy and created once, because a new predict_batch_udf would load its model again.
            ours, theirs = est.predict(frame, batch_size=net.batch), peers.spark_predict(frame, path, net)
            check_same(ours.limit(8).toPandas(), theirs.limit(8).toPandas())
            works = {"Orca on Spark": lambda: compute(ours), "predict_batch_udf": lambda: compute(theirs)}
            first = {
                "Orca on Spark": lambda: seconds_of(
                    lambda: uncached(path, folder).predict(frame, batch_size=net.batch).first()
                ),
                "predict_batch_udf": lambda: seconds_of(lambda: peers.spark_predict(frame, path, net).first()),
            }
            lines = compare(f"3{size}", f"Spark DataFrame, {net.name}", works, first, 1.5, net, options)
            lines += limit(est, net, x, frame, works["predict_batch_udf"], options.turns)
            return [*lines, *untuned(ours, path, frame, size, net, options.turns)]
    finally:
        stop_orca_context()
        session.stop()


def limit(est: Estimator, net: peers.Net, x: Any, frame: Any, peer: Callable[[], Any], turns: int) -> list[str]:
    """Compute the largest possible speedup over the peer: the model and the transfer through Java share the cores."""
    from orca.backends.openvino.replica import OpenvinoReplica

    model, passing = OpenvinoReplica(est.spec, CORES), peers.spark_pass(frame)
    batches = [x[low : low + net.batch] for low in range(0, net.rows, net.batch)]
    sides: dict[str, Side] = {
        "the model alone": rate(lambda: list(model.predict_stream(batches)), net.rows),
        "rows to Python and back": rate(lambda: compute(passing), net.rows),
        "predict_batch_udf again": rate(peer, net.rows),
    }
    for side in sides.values():
        side()
    results = take_turns(sides, turns, "rows/s")
    compute_rate, transfer_rate, theirs = (statistics.median(results[name]) for name in sides)
    best = 1 / (1 / compute_rate + 1 / transfer_rate)
    return [
        f"      all cores compute {compute_rate:,.0f} rows/s and transfer {transfer_rate:,.0f} rows/s to Python and "
        f"back: at most {best:,.0f} rows/s, {best / theirs:.2f} x predict_batch_udf, or {compute_rate / theirs:.2f} x "
        "with a free transfer"
    ]


def untuned(ours: Any, path: str, frame: Any, size: str, net: peers.Net, turns: int) -> list[str]:
    """Compare with predict_batch_udf compiled with OpenVINO's default threads, then with its default precision too."""
    auto = Estimator.from_openvino(model_path=path, config={"precision": "auto"})
    threads = peers.spark_predict(frame, path, net, {"INFERENCE_PRECISION_HINT": "f32"})
    pairs = {
        "default threads": {"Orca on Spark": ours, "predict_batch_udf, default threads": threads},
        "all defaults": {
            'Orca on Spark, precision="auto"': auto.predict(frame, batch_size=net.batch),
            "predict_batch_udf, all defaults": peers.spark_predict(frame, path, net, {}),
        },
    }
    lines = []
    for title, pair in pairs.items():
        works = {name: partial(compute, each) for name, each in pair.items()}
        for work in works.values():
            work()
        lines += called_twice(f"3{size}", f"Spark, {title}, {net.name}", works, None, net.rows, turns)
    return lines


def compute(predicted: Any) -> None:
    predicted.write.format("noop").mode("overwrite").save()


def flat_parquet(x: Any, folder: str) -> None:
    """Write flat rows, one file per partition, with row groups small enough for Java's heap."""
    import pyarrow.parquet as pq

    os.makedirs(folder)
    for number, part in enumerate(np.array_split(x, BLOCKS)):
        pq.write_table(flat_table(part), f"{folder}/{number}.parquet", compression="none", row_group_size=256)


def on_ray(net: peers.Net, size: str, options: argparse.Namespace) -> list[str]:
    x = net.data()
    ray = start_ray(CORES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = exported(net, folder)
            # Blocks in Ray's preferred form: Arrow with a tensor column.
            named = ray.data.from_numpy(np.array_split(x, BLOCKS))
            dataset = named.rename_columns({"data": "features"}).materialize()
            init_orca_context(runtime="ray")
            est = Estimator.from_openvino(model_path=path)

            def ours(rows: Any, model: Estimator = est) -> Any:
                return model.predict(rows, batch_size=net.batch).materialize()

            def theirs(rows: Any) -> Any:
                return peers.ray_predict(rows, path, net, CORES).materialize()

            few = dataset.limit(8).materialize()
            check_same(ours(few).to_pandas(), theirs(few).to_pandas())
            works = {"Orca on Ray": lambda: ours(dataset), "map_batches": lambda: theirs(dataset)}
            one = dataset.limit(1).materialize()
            first = {
                "Orca on Ray": lambda: seconds_of(lambda: ours(one, uncached(path, folder))),
                "map_batches": lambda: seconds_of(lambda: theirs(one)),
            }
            return compare(f"4{size}", f"Ray Dataset, {net.name}", works, first, 1.0, net, options)
    finally:
        stop_orca_context()
        ray.shutdown()


def compare(
    section: str,
    title: str,
    works: dict[str, Callable[[], Any]],
    first: dict[str, Callable[[], float]],
    bar: float | None,
    net: peers.Net,
    options: argparse.Namespace,
) -> list[str]:
    """Compare our side, which comes first, with the other."""
    for work in works.values():
        work()
    return [*called_twice(section, title, works, bar, net.rows, options.turns), *memory_and_latency(works, first)]


def check_same(ours: Any, theirs: Any) -> None:
    """Check that both sides predict the same for the same rows, in any order."""
    expected = {np.ravel(row)[0]: value for row, value in zip(ours["features"], ours["prediction"], strict=True)}
    pairs = [
        (expected[np.ravel(row)[0]], value) for row, value in zip(theirs["features"], theirs["prediction"], strict=True)
    ]
    assert len(pairs) == len(expected) == 8, "the two sides return different rows"
    assert all(np.allclose(one, other, atol=1e-4) for one, other in pairs), "the two sides predict different numbers"


# 5: torch ------------------------------------------------------------------------------------------------------------


def accelerated(net: peers.Net, size: str, options: argparse.Namespace) -> list[str]:
    x = net.data()
    init_orca_context(cores=CORES)
    try:
        est = Estimator.from_torch(model=net.make(), workers=1)
        works = {
            "torch, OpenVINO": lambda: est.predict(x, batch_size=net.batch, accelerator="openvino"),
            "torch": lambda: est.predict(x, batch_size=net.batch),
        }
        start = time.perf_counter()
        fast = works["torch, OpenVINO"]()
        print(f"  conversion and first call: {time.perf_counter() - start:.1f} s", flush=True)
        assert np.allclose(fast, works["torch"](), rtol=1e-3, atol=1e-4), "the two sides predict different numbers"
        first = {name: lambda name=name: first_row(name, "", net) for name in works}
        return compare(f"5{size}", f"torch estimator, {net.name}", works, first, None, net, options)
    finally:
        stop_orca_context()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_000, help="rows of the small network")
    parser.add_argument("--large-rows", type=int, default=512, help="rows of the larger network")
    parser.add_argument("--batch-size", type=int, default=256, help="batch size of the small network")
    parser.add_argument("--large-batch-size", type=int, default=4, help="batch size of the larger network")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, such as 1s,3l or 1,4")
    options = parser.parse_args()
    sections = chosen(options.only, SECTIONS)
    nets = {
        "s": peers.Net("small", (1, 28, 28), options.batch_size, options.rows),
        "l": peers.Net("EfficientNet-Lite0", (3, 224, 224), options.large_batch_size, options.large_rows),
    }
    head = [
        *(f"{net.name}: {net.rows:,} rows of {net.row}, batch {net.batch}" for net in nets.values()),
        f"{options.turns} turns",
        facts(("openvino", "torch", "ray", "pyspark", "pyarrow", "numpy"), f"{CORES} threads, 1 per task"),
    ]
    parts: list[Part] = []
    for size, net in nets.items():
        parts += [
            ({f"1{size}", f"2{size}"}, partial(arrays, net, size, sections, options)),
            ({f"3{size}"}, partial(on_spark, net, size, options)),
            ({f"4{size}"}, partial(on_ray, net, size, options)),
            ({f"5{size}"}, partial(accelerated, net, size, options)),
        ]
    measure(parts, sections, head, apart=True)


if __name__ == "__main__":
    main()
