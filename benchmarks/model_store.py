"""Rates of a model store: puts of 1 MB by one and by four processes, references, and filtered reads.

``python benchmarks/model_store.py`` measures in a temporary folder; ``--puts`` and ``--rows`` set the sizes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orca import Store

BAR = 20.0
"""Puts per second of one process that a store has to reach."""


def model_file(folder: str) -> str:
    """Write a model with 1 MB of weights."""
    import openvino
    import openvino.opset13 as ops

    x = ops.parameter([-1, 512], np.float32, name="x")
    model = openvino.Model([ops.matmul(x, ops.constant(np.ones((512, 512), "f4")), False, False)], [x], "wide")
    path = str(Path(folder) / "wide.xml")
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def puts(arguments: tuple[str, str, int]) -> float:
    """Return the puts per second of one process."""
    path, file, count = arguments
    models = Store(path).models
    models.put(file, "warm-up")
    started = time.perf_counter()
    for _ in range(count):
        models.put(file, "net", tag="latest-put")
    return count / (time.perf_counter() - started)


def milliseconds(call: Callable[[], Any], count: int = 20) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--puts", type=int, default=40)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="orca-store-")
    try:
        file = model_file(folder)
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            alone = pool.map(puts, [(f"{folder}/one", file, options.puts)])[0]
            each = pool.map(puts, [(f"{folder}/four", file, options.puts)] * 4, chunksize=1)
        print(f"puts of 1 MB, one process    {alone:8.1f} /s, at least {BAR:g}: {'met' if alone >= BAR else 'MISSED'}")
        print(f"puts of 1 MB, four processes {sum(each):8.1f} /s")
        om = Store(f"{folder}/one")
        print(f"resolve name@alias           {milliseconds(lambda: om.models.resolve('net@latest-put')):8.2f} ms")
        print(f"changes()                    {milliseconds(om.changes):8.2f} ms")
        import pandas as pd

        om.datasets.put(pd.DataFrame({"x": np.arange(options.rows), "y": np.zeros(options.rows)}), "rows")
        whole, part = (
            milliseconds(lambda filters=filters: om.datasets.get("rows", **filters), 5)
            for filters in ({}, {"x__lt": 10})
        )
        print(f"{options.rows} rows            {whole:8.1f} ms, the first 10 by a filter {part:.1f} ms")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
