"""What the drivers of tests and benchmarks on several hosts run."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from orca import Estimator, XShards
from orca.callbacks import Callback
from orca.context import current
from orca.history import History
from orca.testing.cases import SEED, BackendCase

ROWS, EPOCHS, BATCH, WORKERS = 101, 2, 16, 2
BLOCK = 100
LONG_EPOCHS = 30
STEP_SECONDS = 0.1
"""How long each step waits for a fault to strike: 20 s in total."""
STRUCK, CONTINUED = "struck", "continued"
"""Files with the moment of a fault, and of the first step after it."""


def case_of(module: str, backend: str) -> BackendCase:
    """Return the case of a backend among the PLAIN ones of a module."""
    plain: list[BackendCase] = import_module(module).PLAIN
    return next(case for case in plain if case.name == backend)


def worst_weight(module: str, backend: str, workers: int = WORKERS) -> float:
    """Train on the cluster and in this process; return the largest difference between two weights.

    It raises an AssertionError if one is larger than the case allows, 1e-5 of a weight.
    """
    case = case_of(module, backend)
    est = case.make(workers, seed=SEED)
    est.fit(*case.data(ROWS), epochs=EPOCHS, batch_size=BATCH)
    learned, expected = case.learned(est), case.expected(ROWS, EPOCHS, BATCH)
    est.shutdown()
    for name, value in expected.items():
        np.testing.assert_allclose(learned[name], value, rtol=case.rtol, atol=case.atol, err_msg=name)
    return max(float(np.abs(learned[name] - value).max()) for name, value in expected.items())


def nodes() -> int:
    """Return how many nodes the cluster of the active context takes for alive."""
    return current().nodes


def row_bytes(width: int) -> int:
    """Return the bytes of a row of `wide_rows`."""
    return width * 4 + 8


def wide_rows(start: int, stop: int, width: int) -> dict[str, Any]:
    """Return rows with many random numbers each, which do not depend on how blocks of rows are split."""
    assert start % BLOCK == stop % BLOCK == 0, f"rows {start} to {stop} are not blocks of {BLOCK}"
    x = np.empty((stop - start, width), "float32")
    for low in range(0, len(x), BLOCK):
        np.random.default_rng(start + low).random(dtype="float32", out=x[low : low + BLOCK])
    return {"x": x, "y": np.arange(start, stop) % 2}


def wide_source(kind: str, rows: int, width: int, shards: int) -> Any:
    """Return wide rows: arrays of the driver, shards of the driver's arrays, or shards computed on the cluster."""
    if kind == "arrays":
        return wide_rows(0, rows, width)
    if kind == "shards":
        return XShards.partition(wide_rows(0, rows, width))
    edges = np.linspace(0, rows, shards + 1).astype(int)
    plans = [{"edges": np.array([[low, high]])} for low, high in itertools.pairwise(edges)]
    return XShards.from_shards(plans).transform_shard(_rows_of_plan, width)


def _rows_of_plan(plan: dict[str, Any], width: int) -> dict[str, Any]:
    low, high = plan["edges"][0]
    return wide_rows(int(low), int(high), width)


def fit_wide(kind: str, rows: int, width: int, shards: int, batch_size: int) -> dict[str, Any]:
    """Train a small model for an epoch of wide rows; return its weights and how long it took."""
    est = wide_estimator(width)
    began = time.monotonic()
    est.fit(wide_source(kind, rows, width, shards), epochs=1, batch_size=batch_size)
    seconds = time.monotonic() - began
    weights = {name: value.numpy() for name, value in est.get_model().state_dict().items()}
    return {"seconds": seconds, "weights": weights}


def wide_estimator(width: int) -> Estimator:
    """Return an estimator whose gradients are few bytes, compared with its rows."""
    import torch
    from torch import nn

    return Estimator.from_torch(
        model=lambda config: nn.Linear(width, 2),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=nn.CrossEntropyLoss(),
        workers=WORKERS,
        seed=SEED,
    )


class Report(Callback):
    """Writes the host and the process of every rank to files when the training is under way."""

    def __init__(self, folder: str, step: int = 3) -> None:
        self.folder, self.step = folder, step

    def after_batch(self, run: Any) -> None:
        place = Path(self.folder, f"rank{run.rank}")
        if run.step >= self.step and not place.exists():
            place.with_suffix(".new").write_text(f"{os.uname().nodename} {os.getpid()}")
            place.with_suffix(".new").rename(place)


def fit_until_killed(folder: str, module: str, backend: str) -> None:
    """Train for much longer than any test waits."""
    case = case_of(module, backend)
    est = case.make(WORKERS, seed=SEED)
    x, y = case.data(2000)
    try:
        est.fit(x, y, epochs=100_000, batch_size=BATCH, callbacks=[Report(folder)])
    finally:
        est.shutdown()


class Continued(Callback):
    """Slows steps down until a fault strikes, and writes when a run that began after it makes its first step."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.began = 0.0

    def before_run(self, run: Any) -> None:
        self.began = time.monotonic()

    def after_batch(self, run: Any) -> None:
        struck, continued = Path(self.folder, STRUCK), Path(self.folder, CONTINUED)
        if not struck.exists() or self.began < float(struck.read_text() or "inf"):
            time.sleep(STEP_SECONDS)
        elif run.rank == 0 and not continued.exists():
            continued.write_text(f"{time.monotonic()} {run.step} {run.world}")


@functools.cache
def undisturbed(module: str, backend: str) -> tuple[dict[str, np.ndarray], History]:
    """Train on two hosts without any fault; return the weights and the history."""
    case = case_of(module, backend)
    est = case.make(WORKERS, seed=SEED)
    history = est.fit(*case.data(ROWS), epochs=LONG_EPOCHS, batch_size=BATCH)
    est.shutdown()
    return case.learned(est), history


def fit_through_fault(folder: str, module: str, backend: str) -> dict[str, Any]:
    """Train with a fault that costs a worker; return weights, history and log, and how far the weights are off.

    It raises an AssertionError if rows are missing.
    """
    weights, expected = undisturbed(module, backend)
    case = case_of(module, backend)
    est = case.make(WORKERS, seed=SEED)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("orca").addHandler(handler)
    options: dict[str, Any] = {"epochs": LONG_EPOCHS, "batch_size": BATCH}
    options |= {"max_failures": 1, "min_workers": 1, "checkpoint_trigger": 5}
    try:
        history = est.fit(*case.data(ROWS), callbacks=[Report(folder, step=18), Continued(folder)], **options)
    finally:
        logging.getLogger("orca").removeHandler(handler)
        est.shutdown()
    assert history["rows"] == expected["rows"], f"trained on {history['rows']} rows"
    learned = case.learned(est)
    apart = {name: np.abs(learned[name] - value) for name, value in weights.items()}
    return {
        "weights": learned,
        "history": history,
        "lines": lines,
        "absolute": max(float(values.max()) for values in apart.values()),
        "relative": max(float((values / np.abs(weights[name])).max()) for name, values in apart.items()),
    }
