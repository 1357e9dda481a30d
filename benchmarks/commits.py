"""Benchmarks one checkout of Orca against another: the same programs in both trees, interleaved.

    git worktree add /tmp/old v0.1.0
    python benchmarks/commits.py --old /tmp/old --turns 4

Each program uses the public API only and runs in a fresh process with the tree first on its import path. It does its
work once to warm up and reports the second time. Every other turn runs in reverse order; the ratio is the median of
new / old within a turn, turned round for seconds, so that above 1 always means that the new tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

PROLOGUE = """
import json, os, sys, tempfile, time, logging, warnings
warnings.simplefilter("ignore")
import numpy as np
results = {}
def timed(name, work, rows=None, warm=1):
    for _ in range(warm):
        work()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    results[name] = [seconds, "s"] if rows is None else [rows / seconds, "rows/s"]
rng = np.random.default_rng(0)
"""
TORCH = """
import torch
from torch import nn
from orca import Estimator, XShards, init_orca_context
def make(backend="torch_distributed", workers=2):
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    model = nn.Sequential(*layers)
    return Estimator.from_torch(model=model, optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
                                config={"lr": 0.01}, workers=workers, seed=0, backend=backend)
x = rng.normal(size=(ROWS, 64)).astype("f4"); y = x[:, :10].argmax(axis=1)
"""
PROGRAMS = {
    "start": """
began = time.perf_counter()
import orca
results["import orca"] = [time.perf_counter() - began, "s"]
began = time.perf_counter()
orca.init_orca_context(cores=2)
results["local context start"] = [time.perf_counter() - began, "s"]
""",
    "fit_overhead": "ROWS = 100_000\n"
    + TORCH
    + """
init_orca_context(cores=2)
est = make()
began = time.perf_counter()
est.fit(x[:512], y[:512], epochs=1, batch_size=256)
results["cold first fit of one step"] = [time.perf_counter() - began, "s"]
timed("warm fit of two steps", lambda: est.fit(x[:512], y[:512], epochs=1, batch_size=256), warm=3)
history = est.fit(x, y, epochs=4, batch_size=256)
results["steady training"] = [float(np.median(history["rows_per_s"][1:])), "rows/s"]
timed("evaluate", lambda: est.evaluate(x, y), len(x))
timed("predict an array", lambda: est.predict(x), len(x), warm=2)
""",
    "torch_backends": "ROWS = 100_000\n"
    + TORCH
    + """
init_orca_context(cores=2)
for backend in ("torch_distributed", "horovod", "parameter_server"):
    est = make(backend)
    history = est.fit(x, y, epochs=4, batch_size=256)
    results[f"steady training, {backend}"] = [float(np.median(history["rows_per_s"][1:])), "rows/s"]
    est.shutdown()
""",
    "ray": "ROWS = 100_000\n"
    + TORCH
    + """
import ray, ray.data
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
logging.getLogger("ray.data").setLevel("ERROR")
init_orca_context(runtime="ray", cores=2)
import pyarrow as pa
features = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 64)
data = ray.data.from_arrow(pa.table({"features": features, "label": y})).repartition(4).materialize()
est = make()
timed("Ray Dataset to trained model, warm", lambda: est.fit(data, epochs=2, batch_size=256), None)
timed("predict a Ray Dataset", lambda: est.predict(data).materialize(), len(x))
""",
    "spark": "ROWS = 100_000\n"
    + TORCH
    + """
import pandas as pd
context = init_orca_context(runtime="spark", cores=2)
frame = context.spark.createDataFrame(pd.DataFrame({"features": x.tolist(), "label": y})).repartition(4).cache()
frame.count()
est = make()
timed("Spark DataFrame to trained model, warm", lambda: est.fit(frame, epochs=2, batch_size=256))
out = est.predict(frame)
timed("predict a Spark DataFrame", lambda: out.write.format("noop").mode("overwrite").save(), len(x))
shards = XShards.partition({"x": x, "y": y}, 8)
timed("XShards transform and collect on Spark", lambda: shards.transform_shard(lambda s: {"x": s["x"] * 2}).collect())
""",
    "data_path": """
import pandas as pd
from orca import XShards, init_orca_context
from orca.data import read_csv
init_orca_context(cores=2)
x = rng.normal(size=(400_000, 64)).astype("f4")
shards = XShards.partition({"x": x}, 8)
doubled = lambda: shards.transform_shard(lambda s: {"x": s["x"] * 2}).collect()
timed("XShards transform and collect", lambda: [s["x"].sum() for s in doubled()])
timed("partition arrays", lambda: XShards.partition({"x": x}, 8))
path = os.path.join(tempfile.mkdtemp(), "rows.csv")
pd.DataFrame(x[:100_000, :16]).to_csv(path, index=False)
timed("read_csv", lambda: len(read_csv(path)))
frame = pd.DataFrame({"k": rng.integers(0, 50, 200_000), "v": rng.normal(size=200_000)})
parts = XShards.partition(frame, 8)
timed("group_by", lambda: parts.group_by("k", {"v": "mean"}).to_pandas())
""",
    "inference": "ROWS = 40_000\n"
    + TORCH
    + """
import openvino as ov
init_orca_context(cores=2)
first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2)
net = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(2704, 10)).eval()
folder = tempfile.mkdtemp()
ov.save_model(ov.convert_model(net, input=[-1, 1, 28, 28]), folder + "/net.xml", compress_to_fp16=False)
images = rng.normal(size=(ROWS, 1, 28, 28)).astype("f4")
alone = Estimator.from_openvino(model_path=folder + "/net.xml")
timed("OpenVINO, an array, one process", lambda: alone.predict(images, batch_size=256), ROWS, warm=2)
two = Estimator.from_openvino(model_path=folder + "/net.xml", workers=2)
timed("OpenVINO, an array, two workers", lambda: two.predict(images, batch_size=256), ROWS, warm=2)
est = Estimator.from_torch(model=net)
timed("accelerator=openvino", lambda: est.predict(images, batch_size=256, accelerator="openvino"), ROWS, warm=2)
""",
}


def run(tree: Path, program: str) -> dict[str, tuple[float, str]]:
    """Run a program in a tree; return what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(PROLOGUE + PROGRAMS[program] + "\nprint('RESULTS ' + json.dumps(results), flush=True)\n")
        env = {**os.environ, "PYTHONPATH": str(tree)}
        output = subprocess.run([sys.executable, str(path)], env=env, cwd=tree, capture_output=True, text=True)
    lines = [line for line in output.stdout.splitlines() if line.startswith("RESULTS ")]
    if not lines:
        raise SystemExit(f"{program} failed in {tree}:\n{output.stderr[-3000:]}")
    return {name: (value, unit) for name, (value, unit) in json.loads(lines[-1][8:]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the other checkout")
    parser.add_argument("--new", type=Path, default=HERE.parent, help="this checkout")
    parser.add_argument("--turns", type=int, default=4, help="even, as the side that runs first in a turn tends to win")
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, separated by commas")
    options = parser.parse_args()
    for program in options.only.split(","):
        measured: dict[str, list[dict[str, tuple[float, str]]]] = {"old": [], "new": []}
        for turn in range(options.turns):
            for side in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                measured[side].append(run(getattr(options, side).resolve(), program))
        print(f"{program}", flush=True)
        for name, (_, unit) in measured["new"][0].items():
            pairs = [(o[name][0], n[name][0]) for o, n in zip(measured["old"], measured["new"], strict=True)]
            ratios = [new / old if unit == "rows/s" else old / new for old, new in pairs]
            old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
            turns = ", ".join(f"{ratio:.3f}" for ratio in ratios)
            shown = "{:,.0f}" if unit == "rows/s" else "{:.4f}"
            values = f"old {shown.format(old):>9} new {shown.format(new):>9} {unit:<6}"
            print(f"  {name:<42} {statistics.median(ratios):6.3f}   {values}  turns: {turns}", flush=True)


if __name__ == "__main__":
    main()
