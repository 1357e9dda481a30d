"""IterableDatasets and generators are streamed on the ranks: each row once, and no rank waits for another's end."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from orca import Estimator
from orca.context import Context
from orca.errors import DataError, WorkerError
from orca.testing.faults import Fault
from orca.triggers import SeveralIteration

Row = tuple[torch.Tensor, torch.Tensor]


def write(log: Path, *values: object) -> None:
    with log.open("a") as file:
        file.write(" ".join(map(str, values)) + "\n")


class Numbers(IterableDataset[Row]):
    """Rows with a number, disturbed at random; every row that is produced is written to a file."""

    def __init__(self, log: Path, rows: int | None = 1001) -> None:
        self.log, self.rows = log, rows

    def numbers(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        numbers = itertools.count(first, step)
        return numbers if self.rows is None else itertools.takewhile(lambda number: number < self.rows, numbers)

    def __iter__(self) -> Iterator[Row]:
        for number in self.numbers():
            write(self.log, os.getpid(), number)
            noise = random.random() + np.random.rand() + torch.rand(()).item()
            yield torch.tensor([number / 1000, noise]), torch.tensor([number / 1000])

    def produced(self) -> list[tuple[int, int]]:
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]


class Sharded(Numbers):
    """The same for a rank's own rows: those of rank 1 end early."""

    borders = (0, 500, 520, 1001)
    own: range | None = None

    def shard(self, rank: int, world: int) -> Sharded:
        assert world == len(self.borders) - 1
        other = Sharded(self.log, self.rows)
        other.own = range(self.borders[rank], self.borders[rank + 1])
        return other

    def numbers(self) -> Iterator[int]:
        assert self.own is not None, "every rank iterates over its own part"
        return iter(self.own)


class Seen(nn.Module):
    """A linear model that writes the numbers of the rows it is trained on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.body, self.log = nn.Linear(2, 1), config.get("log")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.log is not None:
            write(Path(self.log), self.training, *(x[:, 0] * 1000).round().int().tolist())
        return self.body(x)


def make(workers: int, log: Path | None = None, **options: Any) -> Estimator:
    config = {"lr": 0.05} | ({} if log is None else {"log": str(log)})
    return Estimator.from_torch(
        model=lambda config: Seen(config), optimizer=torch.optim.Adam, loss=nn.MSELoss(),
        config=config, workers=workers, seed=5, **options,
    )  # fmt: skip


def weights(est: Estimator) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in est.get_state_dict().values()])


def trained_on(log: Path) -> Counter[int]:
    lines = (line.split() for line in log.read_text().splitlines())
    return Counter(int(number) for kind, *numbers in lines if kind == "True" for number in numbers)


def test_three_workers_learn_from_each_item_once_like_one(local: Context, tmp_path: Path):
    learned = []
    for workers in (1, 3):
        dataset = Numbers(tmp_path / f"produced{workers}")
        est = make(workers)
        history = est.fit(dataset, epochs=2, batch_size=64)
        assert history["rows"] == [1001, 1001]
        assert history.params["steps"] == 16
        assert os.getpid() not in {pid for pid, _ in dataset.produced()}, "the driver produces no row"
        assert Counter(number for _, number in dataset.produced()) == dict.fromkeys(range(1001), 2 * workers)
        learned.append(weights(est))
    np.testing.assert_allclose(learned[0], learned[1], rtol=1e-5)


def test_a_rank_whose_shard_ends_early_stops_nobody(local: Context, tmp_path: Path):
    dataset = Sharded(tmp_path / "produced")
    est = make(3, tmp_path / "seen")
    history = est.fit(dataset, epochs=2, batch_size=48, validation_data=dataset)
    assert history["rows"] == [1001, 1001]
    assert Counter(number for _, number in dataset.produced()) == dict.fromkeys(range(1001), 4)
    pids = [{pid for pid, number in dataset.produced() if number in part} for part in (range(500), range(520, 1001))]
    assert [len(part) for part in pids] == [1, 1], "each rank reads only its own rows"
    counts = trained_on(tmp_path / "seen")
    # The last rows of rank 1 fill its steps, with weight zero, until the others have ended.
    assert {number: count for number, count in counts.items() if count != 2}.keys() <= {*range(504, 520), 1000}
    assert counts.keys() == set(range(1001))
    assert est.evaluate(dataset)["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-6)


def test_an_empty_shard_takes_part_with_rows_of_another_rank(local: Context, tmp_path: Path):
    dataset = Sharded(tmp_path / "produced")
    dataset.borders = Sharded.borders = (0, 0, 60, 100)
    try:
        assert make(3).fit(dataset, epochs=2, batch_size=12)["rows"] == [100, 100]
    finally:
        Sharded.borders = (0, 500, 520, 1001)


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_loader_of_a_stream_keeps_its_processes_and_batches(local: Context, tmp_path: Path, loaders: int):
    learned = []
    for workers in (1, 2):
        dataset = Numbers(tmp_path / f"produced{workers}", 101)
        est = make(workers)
        history = est.fit(DataLoader(dataset, batch_size=8, num_workers=loaders), epochs=2, batch_size=16)
        assert history["rows"] == [101, 101]
        assert Counter(number for _, number in dataset.produced()) == dict.fromkeys(range(101), 2 * workers)
        assert len({pid for pid, _ in dataset.produced()}) == (2 * loaders or 1) * workers
        learned.append(weights(est))
    np.testing.assert_allclose(learned[0], learned[1], rtol=1e-5)


@pytest.mark.parametrize("length", [{"epochs": 4}, {"epochs": 4, "steps_per_epoch": 9}])
def test_a_killed_run_resumes_within_a_pass(local: Context, tmp_path: Path, length: dict[str, int]):
    dataset = Numbers(tmp_path / "produced", 203)
    whole = make(2)
    expected = whole.fit(dataset, batch_size=16, **length)
    est = make(2, model_dir=str(tmp_path / "model"))
    options = {"checkpoint_trigger": SeveralIteration(5), "callbacks": [Fault("kill", 1, 18)]}
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        est.fit(dataset, batch_size=16, **options, **length)
    history = est.fit(dataset, batch_size=16, resume=True, **length)
    assert history["rows"][-2:] == expected["rows"][-2:]
    assert history["loss"][-2:] == expected["loss"][-2:]
    np.testing.assert_array_equal(weights(est), weights(whole))


def test_a_checkpoint_after_the_last_step_of_a_pass_is_complete(local: Context, tmp_path: Path):
    dataset = Numbers(tmp_path / "produced", 64)
    whole = make(2)
    whole.fit(dataset, batch_size=16, epochs=3)
    est = make(2, model_dir=str(tmp_path / "model"))
    est.fit(dataset, batch_size=16, epochs=3, max_steps=4, checkpoint_trigger=SeveralIteration(4))
    history = est.fit(dataset, batch_size=16, epochs=3, resume=True)
    assert history["rows"] == [64, 64, 64] or history["rows"] == [64, 64]
    np.testing.assert_array_equal(weights(est), weights(whole))


def test_streams_without_an_end_need_a_number_of_steps(local: Context, tmp_path: Path):
    dataset = Numbers(tmp_path / "produced", None)
    est = make(2, tmp_path / "seen")
    assert est.fit(dataset, batch_size=10, epochs=3, steps_per_epoch=7)["rows"] == [70, 70, 70]
    assert trained_on(tmp_path / "seen") == dict.fromkeys(range(210), 1), "an epoch continues where the last has ended"
    assert make(2).fit(dataset, batch_size=10, max_steps=13)["rows"] == [130]
    history = make(2).fit(dataset, batch_size=10, max_steps=3, validation_data=dataset, validation_steps=4)
    assert history["val_loss"]


def test_a_stream_that_ends_begins_again_for_a_number_of_steps(local: Context, tmp_path: Path):
    est = make(2, tmp_path / "seen")
    assert est.fit(Numbers(tmp_path / "produced", 30), batch_size=10, epochs=4, steps_per_epoch=2)["rows"] == [20] * 4
    assert trained_on(tmp_path / "seen") == Counter([*range(30), *range(30), *range(20)])


def rows(config: dict[str, Any]) -> Iterator[tuple[np.ndarray, float]]:
    for number in range(101):
        write(Path(config["produced"]), os.getpid(), number)
        yield np.array([number / 1000, random.random()], "f4"), number / 1000


def batches(config: dict[str, Any], batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    numbers = np.arange(101, dtype="f4") / 1000
    for low in range(0, 101, 7):
        part = numbers[low : low + 7]
        yield np.stack([part, [random.random() for _ in part]], 1).astype("f4"), part


def test_generator_functions_yield_rows_or_batches(local: Context, tmp_path: Path):
    learned = {}
    for creator, workers in itertools.product((rows, batches), (1, 2)):
        est = make(workers)
        est._setup.spec.config["produced"] = str(tmp_path / f"{creator.__name__}{workers}")
        history = est.fit(creator, epochs=2, batch_size=16, validation_data=creator)
        assert history["rows"] == [101, 101]
        learned[creator.__name__, workers] = weights(est)
    for other in learned.values():
        np.testing.assert_allclose(other, learned["rows", 1], rtol=1e-5)
    lines = [line.split() for line in (tmp_path / "rows2").read_text().splitlines()]
    assert Counter(int(number) for _, number in lines) == dict.fromkeys(range(101), 2 * 4)
    assert str(os.getpid()) not in {pid for pid, _ in lines}


def test_servers_run_no_creator_and_read_no_row(local: Context, tmp_path: Path):
    est = make(2, backend="parameter_server", mode="async", servers=1)
    est._setup.spec.config["produced"] = str(tmp_path / "produced")
    history = est.fit(rows, epochs=2, batch_size=16, validation_data=lambda: (np.zeros((4, 2), "f4"), np.zeros(4)))
    assert history["rows"] == [101, 101]
    assert history.params["steps"] == 7
    assert len({line.split()[0] for line in (tmp_path / "produced").read_text().splitlines()}) == 2


def test_what_cannot_be_streamed_is_refused(local: Context, tmp_path: Path):
    with pytest.raises(DataError, match=r"data= is a generator.*Give the function that creates it"):
        make(2).fit((row for row in [(np.zeros(2), 0.0)]), batch_size=4)
    with pytest.raises(WorkerError, match="no row to train on"):
        make(2).fit(Numbers(tmp_path / "produced", 0), batch_size=4)
    with pytest.raises(WorkerError, match=r"a stream keeps its own order. Leave shuffle= out"):
        make(2).fit(Numbers(tmp_path / "produced", 8), batch_size=4, shuffle="global")
    with pytest.raises(WorkerError, match="There is no row to evaluate"):
        make(2).evaluate(Numbers(tmp_path / "produced", 0))


class Broken(Numbers):
    def __iter__(self) -> Iterator[Row]:
        for number in range(100):
            yield torch.tensor([float("nan") if number == 37 else 0.0, 1.0]), torch.tensor([0.0])


def test_a_nan_in_a_stream_is_named(local: Context, tmp_path: Path):
    with pytest.raises(WorkerError, match=r"The batch has nan or inf in column 0 of the features \(first in row 5\)"):
        make(1).fit(Broken(tmp_path / "produced"), batch_size=16)
