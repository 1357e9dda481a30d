"""Random calls and faults on one context for a long time: memory, descriptors, threads and files must not grow.

``python -m orca.testing.soak --minutes 60 --seed 0`` prints a table of what was measured and fails if anything grew.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from orca.errors import OrcaError
from orca.testing.cases import NAMES, SEED, BackendCase, cut
from orca.testing.comparing import near, same_scores, same_weights
from orca.testing.failing import local_pids
from orca.testing.fault_injectors import kill_zygotes
from orca.testing.faults import Fault
from orca.testing.leftovers import still_there
from orca.testing.linear import LINEAR_CASE
from orca.triggers import SeveralIteration

if TYPE_CHECKING:
    from orca.context import Context

ROWS, BATCH = 60, 12
EPOCHS = 6
"""Epochs after which an estimator is replaced, so that few references have to be computed."""
GROWTH = 0.05
"""Share by which memory may be larger at the end; allocators keep pages that they have freed."""
SLACK_MB = 16.0


@dataclass(frozen=True)
class Sample:
    """What this process and the ones below it hold while no call runs."""

    minute: float
    operations: int
    driver_mb: float
    """Memory of the driver."""
    all_mb: float
    """Memory of all processes."""
    descriptors: int
    threads: int
    processes: int
    files: int
    """Files and folders of Orca in the temporary folder."""


def measure(context: Context, began: float, operations: int) -> Sample:
    """Take a sample, after ending the ranks that happen to be warm."""
    context.stop_gangs()
    gc.collect()
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    memory = [_own_memory(process) for process in family]
    found = [path for pattern in ("orca-*", ".orca-*") for path in Path(tempfile.gettempdir()).glob(pattern)]
    files = sum(1 + sum(1 for _ in path.rglob("*")) for path in found)
    return Sample(
        (time.monotonic() - began) / 60, operations, memory[0], sum(memory),
        me.num_fds(), me.num_threads(), sum(value > 0 for value in memory), files,
    )  # fmt: skip


def _own_memory(process: psutil.Process) -> float:
    try:
        held = process.memory_info()
        # Without pages of files, which other processes of the machine share or do not.
        return float(held.rss - held.shared) / 2**20
    except psutil.Error:
        return 0.0


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return what is more in the last third of the samples than in the first third.

    >>> first = Sample(0, 10, 100.0, 200.0, 20, 5, 2, 3)
    >>> last = Sample(9, 90, 170.0, 205.0, 21, 5, 2, 3)
    >>> grown([first, last])
    ['driver_mb: 100.0 to 170.0', 'descriptors: 20 to 21']
    """
    third = max(1, len(samples) // 3)
    found = []
    for entry in fields(Sample)[2:]:
        first, last = (
            float(np.median([getattr(sample, entry.name) for sample in part]))
            for part in (samples[:third], samples[-third:])
        )
        allowed = first * (1 + GROWTH) + SLACK_MB if entry.name.endswith("_mb") else first
        if last > allowed:
            found.append(f"{entry.name}: {first:g} to {last:g}" if "_mb" not in entry.name else
                         f"{entry.name}: {first:.1f} to {last:.1f}")  # fmt: skip
    return found


class Soak:
    """Random operations on one context, each checked exactly."""

    def __init__(self, context: Context, case: BackendCase, seed: int, folder: str) -> None:
        self._context, self._case, self._folder = context, case, folder
        self._chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.x, self.y = case.data(ROWS)
        self._renew()
        self._operations: list[tuple[str, int, Callable[[], None]]] = [
            ("fit", 8, self.fit),
            ("evaluate", 6, self.evaluate),
            ("predict arrays", 6, self.predict_arrays),
            ("predict shards", 4, self.predict_shards),
            ("predict frame", 4, self.predict_frame),
            ("transform", 6, self.transform),
            ("save and load", 4, self.save_and_load),
            ("failed transform", 2, self.failed_transform),
            ("refused fit", 2, self.refused),
            ("raise in fit", 2, partial(self.failed_fit, "raise")),
            ("kill in fit", 2, partial(self.failed_fit, "kill")),
            ("stop in fit", 1, partial(self.failed_fit, "stop")),
            ("survived kill", 2, self.survived_kill),
            ("kill while idle", 2, self.killed_while_idle),
            ("killed zygote", 1, self.killed_zygote),
        ]

    def step(self) -> None:
        """Do one random operation."""
        weights = [weight for _, weight, _ in self._operations]
        name, _, operation = self._chance.choices(self._operations, weights)[0]
        if self._est.epoch >= EPOCHS:
            self._renew()
        self.counts[name] += 1
        operation()

    def fit(self) -> None:
        history = self._est.fit(self.x, self.y, batch_size=BATCH)
        assert history["rows"] == [ROWS], f"trained on {history['rows']} rows"
        self._check_weights()

    def evaluate(self) -> None:
        scores = self._trained().evaluate(cut(self.x, self.y, (20, 0, 40)))
        if self._case.scores is not None:
            same_scores(scores, self._case.scores(self._est, self.x, self.y), "evaluate")

    def predict_arrays(self) -> None:
        rows = self._chance.randint(1, ROWS)
        self._near(self._trained().predict(self.x[:rows]), rows)

    def predict_shards(self) -> None:
        predicted = self._trained().predict(cut(self.x, self.y, (11, 9, 0, 40))).collect()
        self._near(np.concatenate([shard["prediction"] for shard in predicted]), ROWS)

    def predict_frame(self) -> None:
        import pandas as pd

        frame = pd.DataFrame({"id": np.arange(ROWS), **dict(zip(NAMES, self.x.T, strict=True))})
        predicted = self._trained().predict(frame, feature_cols=NAMES)
        assert predicted["id"].tolist() == list(range(ROWS)), "rows of a frame"
        values = np.stack(list(predicted["prediction"]))
        self._near(values.reshape(self._case.compute(self._est, self.x).shape), ROWS)

    def transform(self) -> None:
        count = self._chance.randint(1, 7)
        shards = cut(self.x, self.y, (3, 20, 0, 37)).transform_shard(_double).repartition(count)
        np.testing.assert_array_equal(np.concatenate([shard["x"] for shard in shards.collect()]), 2 * self.x)

    def failed_transform(self) -> None:
        self._expect(lambda: cut(self.x, self.y, (30, 30)).transform_shard(_divide).collect())

    def save_and_load(self) -> None:
        path = self._trained().save(f"{self._folder}/state")
        other = self._case.make(2, seed=SEED + 1).load(path)
        same_weights(self._case.learned(other), self._case.learned(self._est), self._case, "after loading")

    def failed_fit(self, how: str) -> None:
        """A fit that a fault ends; the estimator stays as it was."""
        epoch = self._trained().epoch
        fault = Fault(how, self._chance.randint(0, 1) if self._case.processes else 0, self._est.step + 2)
        self._expect(lambda: self._est.fit(self.x, self.y, batch_size=BATCH, callbacks=[fault]))
        assert self._est.epoch == epoch, "a failed fit changed the estimator"
        self._check_weights()

    def survived_kill(self) -> None:
        """A fit that loses a rank and continues from its checkpoint."""
        fault = Fault("kill", 1 if self._case.processes else 0, self._trained().step + 4)
        options: dict[str, Any] = {"checkpoint_trigger": SeveralIteration(2), "max_failures": 1}
        self._est.fit(self.x, self.y, batch_size=BATCH, callbacks=[fault], **options)
        self._check_weights()

    def killed_while_idle(self) -> None:
        pids = local_pids(self._trained(), self._context)[-1:]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not still_there(pids, []), "a killed rank lives"
        time.sleep(0.3)  # the driver notices on a thread of its own
        self.fit()

    def killed_zygote(self) -> None:
        kill_zygotes(0)
        # A call that still needs the killed process fails; the one after it has a new one.
        with suppress(OrcaError):
            self.fit()
        self.fit()

    def refused(self) -> None:
        self._expect(lambda: self._est.fit(self.x, self.y[:-1]))

    def _renew(self) -> None:
        self._est = self._case.make(2, seed=SEED)

    def _trained(self) -> Any:
        if self._est.epoch == 0:
            self.fit()
        return self._est

    def _check_weights(self) -> None:
        expected = self._case.expected(ROWS, self._est.epoch, BATCH)
        same_weights(self._case.learned(self._est), expected, self._case, f"after {self._est.epoch} epochs")

    def _near(self, actual: Any, rows: int) -> None:
        near(actual, self._case.compute(self._est, self.x[:rows]), "predictions", rtol=1e-4, atol=1e-5)

    def _expect(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OrcaError:
            return
        raise AssertionError("expected an OrcaError")


def _double(shard: dict[str, Any]) -> dict[str, Any]:
    return {"x": 2 * shard["x"], "y": shard["y"]}


def _divide(shard: dict[str, Any]) -> dict[str, Any]:
    return {"x": 1 // 0}


def soak(case: BackendCase, context: Context, minutes: float, seed: int, say: Callable[[str], None]) -> list[Sample]:
    """Do random operations for some minutes; return the samples, the first one after a warm-up of a tenth."""
    began = time.monotonic()
    warm, end = began + 6 * minutes, began + 60 * minutes
    every = max(5.0, 60 * minutes / 40)
    samples: list[Sample] = []
    due = warm
    operations = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        work = Soak(context, case, seed, folder)
        while time.monotonic() < end:
            work.step()
            operations += 1
            if time.monotonic() >= due:
                due = time.monotonic() + every
                samples.append(measure(context, began, operations))
                say(_line(astuple(samples[-1])))
    samples.append(measure(context, began, operations))
    say(_line(astuple(samples[-1])))
    say("operations: " + ", ".join(f"{count} {name}" for name, count in work.counts.most_common()))
    return samples


def _line(values: Sequence[object]) -> str:
    return "  ".join(f"{value:>11.1f}" if isinstance(value, float) else f"{value!s:>11}" for value in values)


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Let this process and its children use a temporary folder that no other program writes to."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runtime", default="local")
    parser.add_argument("--case", default="", metavar="MODULE:NAME", help="a BackendCase")
    options = parser.parse_args()
    from orca.context import init_orca_context

    case = LINEAR_CASE
    if options.case:
        module, _, name = options.case.partition(":")
        case = getattr(importlib.import_module(module), name)
    logging.getLogger("orca").setLevel(logging.ERROR)  # restarts are warnings, and are meant to happen
    print(f"{case.title} on {options.runtime}, seed {options.seed}, {options.minutes:g} minutes")
    print(_line([entry.name for entry in fields(Sample)]), flush=True)
    with (
        _own_temporary_folder(),
        init_orca_context(runtime=options.runtime, cores=6) as context,
    ):
        samples = soak(case, context, options.minutes, options.seed, lambda line: print(line, flush=True))
    more = grown(samples)
    if more:
        print("grew: " + "; ".join(more))
        sys.exit(1)
    print("flat: memory, descriptors, threads, processes and files are no more than at the start")


if __name__ == "__main__":
    main()
