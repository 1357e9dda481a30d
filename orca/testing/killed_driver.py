"""Kills drivers while they write checkpoints: what is on the disk has to be intact, and resuming exact.

``python -m orca.testing.killed_driver --rounds 30`` prints how many drivers were killed in the middle of a write.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orca.backends.parts import Parts
from orca.testing.comparing import same_state
from orca.testing.linear import LINEAR, LinearSpec
from orca.triggers import SeveralIteration

FEATURES = 400_000
"""Enough for states of some megabytes, which take a while to write."""
ROWS, BATCH, EPOCHS, SEED = 8, 2, 3, 5
_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Rounds:
    """How many drivers were killed, and what held after it."""

    killed: int
    in_a_write: int
    """Drivers that were in the middle of writing a checkpoint when they were killed."""
    intact: int
    """Rounds after which every checkpoint could be loaded, and there was one."""
    resumed: int
    """Rounds after which resuming ended with the state of a run that was not interrupted."""
    seconds: float


def estimator(folder: str | None) -> Any:
    """Return an estimator with a large state."""
    from orca.estimator import Estimator
    from orca.runs.values import Learned, Setup

    setup = Setup.create(LINEAR, LinearSpec(FEATURES, rate=1e-5), model_dir=folder)
    return Estimator(setup, Learned.nothing(setup, SEED))


def data() -> tuple[Any, Any]:
    """Return the rows to train on."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, FEATURES)).astype("f4"), np.arange(ROWS) % 2


def kill_drivers(rounds: int, seed: int = 0) -> Rounds:
    """Kill one driver after another at a random moment of `fit`, and look at what it left.

    Args:
        rounds: Number of drivers.
        seed: Seed of the moments.

    Returns:
        What held; nothing was lost if all numbers but ``in_a_write`` equal ``rounds``.
    """
    began, chance = time.monotonic(), random.Random(seed)
    whole = estimator(None)
    whole.fit(*data(), batch_size=BATCH, epochs=EPOCHS)
    in_a_write = intact = resumed = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="killed-") as folder:
            in_a_write += _kill_one(folder, chance)
            intact += _is_intact(f"{folder}/model")
            est = estimator(f"{folder}/model")
            est.fit(*data(), batch_size=BATCH, epochs=EPOCHS, resume=True)
            resumed += (est.epoch, est.step) == (whole.epoch, whole.step) and _same(est, whole)
    return Rounds(rounds, in_a_write, intact, resumed, time.monotonic() - began)


def _kill_one(folder: str, chance: random.Random) -> bool:
    """Kill a driver after a random number of writes and a random time; return whether it was writing."""
    path = os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path)
    driver = subprocess.Popen(
        [sys.executable, "-m", "orca.testing.killed_driver", "--train", folder],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )
    writes, marks = chance.randint(2, ROWS // BATCH * EPOCHS - 1), Path(folder)
    end = time.monotonic() + _WAIT_SECONDS
    while not (marks / f"begun-{writes}").exists():
        if driver.poll() is not None or time.monotonic() > end:
            driver.kill()
            raise AssertionError(f"the driver ended with {driver.wait()} before write {writes}")
        time.sleep(0.001)
    # As long as the writes before took, on average.
    ends = [(marks / f"ended-{number}").stat().st_mtime for number in range(1, writes)]
    starts = [(marks / f"begun-{number}").stat().st_mtime for number in range(1, writes)]
    time.sleep(chance.uniform(0, sum(ends) - sum(starts)) / len(ends))
    driver.kill()
    driver.wait()
    return len(list(marks.glob("begun-*"))) > len(list(marks.glob("ended-*")))


def _is_intact(folder: str) -> bool:
    from orca.errors import OrcaError
    from orca.runs import saved_states
    from orca.runs.checkpoints import checkpoints

    held = [entry.path for entry in os.scandir(folder) if saved_states.exists(entry.path)]
    try:
        for path in held:
            saved_states.load(path)
    except OrcaError as error:
        print(error, file=sys.stderr)
        return False
    return bool(held) and set(checkpoints(folder)) == set(held)


def _same(one: Any, two: Any) -> bool:
    try:
        same_state(one, two, True, "after resuming")
    except AssertionError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _train(folder: str) -> None:
    """As a driver: train with a checkpoint after every step, and leave a mark before and after each write."""
    from orca.context import init_orca_context
    from orca.runs import saved_states

    save, writes = saved_states.save, 0

    def marked(path: str, facts: dict[str, Any], state: Any, parts: Parts | None = None) -> None:
        nonlocal writes
        writes += 1
        Path(folder, f"begun-{writes}").touch()
        save(path, facts, state, parts)
        Path(folder, f"ended-{writes}").touch()

    saved_states.save = marked
    with init_orca_context(cores=1):
        est = estimator(f"{folder}/model")
        est.fit(*data(), batch_size=BATCH, epochs=EPOCHS, checkpoint_trigger=SeveralIteration(1))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        _train(options.train)
        return
    from orca.context import init_orca_context

    with init_orca_context(cores=1):
        result = kill_drivers(options.rounds, options.seed)
    print(
        f"{result.killed} drivers killed, {result.in_a_write} of them while writing a checkpoint: "
        f"{result.intact} times intact, {result.resumed} times resumed to the exact end, {result.seconds:.0f} s"
    )
    if min(result.intact, result.resumed) < result.killed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
