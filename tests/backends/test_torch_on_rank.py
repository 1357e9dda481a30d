"""torch Datasets and DataLoaders are read on the ranks: each row once per epoch, with the same random augmentation."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler

from orca import Estimator
from orca.context import Context
from orca.errors import WorkerError
from orca.testing.faults import Fault
from orca.testing.leftovers import look, settle
from orca.triggers import SeveralIteration

ROWS, BATCH = 101, 16


class Crops(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows that are cropped and disturbed at random; every access is written to a file."""

    def __init__(self, log: Path, rows: int = ROWS) -> None:
        self.log, self.rows = log, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.arange(8, dtype=torch.float32) + index
        start = random.randint(0, 2) + np.random.randint(0, 2)
        row = values[start : start + 4] / 100 + torch.rand(4) / 10
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {index} {row.tolist()}\n")
        return row, torch.tensor([index / 100])

    def accesses(self) -> list[tuple[int, int, str]]:
        lines = self.log.read_text().splitlines()
        return [(int(pid), int(index), row) for pid, index, row in (line.split(" ", 2) for line in lines)]


def model_creator(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))


def make(workers: int, **options: Any) -> Estimator:
    return Estimator.from_torch(
        model=model_creator, optimizer=torch.optim.Adam, loss=nn.MSELoss(), config={"lr": 0.05},
        workers=workers, seed=5, **options,
    )  # fmt: skip


def weights(est: Estimator) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in est.get_state_dict().items()}


def check_close(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    est = make(1)
    est.fit(DataLoader(Crops(tmp_path_factory.mktemp("one") / "log"), batch_size=BATCH), epochs=3)
    return weights(est)


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_and_loaders_learns_the_same(
    local: Context, tmp_path: Path, expected: dict[str, np.ndarray], workers: int, loaders: int
):
    dataset = Crops(tmp_path / "log")
    est = make(workers)
    est.fit(DataLoader(dataset, batch_size=BATCH, num_workers=loaders, shuffle=True), epochs=3)
    check_close(weights(est), expected)
    accesses = dataset.accesses()
    assert Counter(index for _, index, _ in accesses) == dict.fromkeys(range(ROWS), 3)
    assert os.getpid() not in {pid for pid, _, _ in accesses}, "the driver reads no row"
    images = {index: {row for _, other, row in accesses if other == index} for index in range(ROWS)}
    assert all(len(rows) == 3 for rows in images.values()), "every epoch has other crops"


def test_a_plain_dataset_on_every_runtime(context: Context, tmp_path: Path, expected: dict[str, np.ndarray]):
    dataset = Crops(tmp_path / "log")
    est = make(2)
    est.fit(dataset, epochs=3, batch_size=BATCH)
    check_close(weights(est), expected)
    assert Counter(index for _, index, _ in dataset.accesses()) == dict.fromkeys(range(ROWS), 3)


def test_a_killed_run_resumes_within_an_epoch(local: Context, tmp_path: Path, expected: dict[str, np.ndarray]):
    before = look()
    est = make(2, model_dir=str(tmp_path / "model"))
    loader = DataLoader(Crops(tmp_path / "log"), batch_size=BATCH, num_workers=2)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        est.fit(loader, epochs=3, checkpoint_trigger=SeveralIteration(4), callbacks=[Fault("kill", 1, 11)])
    est.fit(loader, epochs=3, resume=True)
    check_close(weights(est), expected)
    est.shutdown()
    assert not settle(before).grown(before)


def test_evaluation_and_validation_read_each_row_once(local: Context, tmp_path: Path):
    train, test = Crops(tmp_path / "train"), Crops(tmp_path / "test", rows=37)
    scores = []
    for workers in (1, 2):
        est = make(workers)
        history = est.fit(train, epochs=2, batch_size=BATCH, validation_data=DataLoader(test, batch_size=5))
        scores.append([*history["val_loss"], est.evaluate(test)["loss"]])
        assert history["val_loss"][-1] == pytest.approx(scores[-1][-1], rel=1e-6)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
    assert Counter(index for _, index, _ in test.accesses()) == dict.fromkeys(range(37), 2 * 3)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_order_of_a_sampler_is_followed(local: Context, tmp_path: Path, workers: int):
    dataset = Crops(tmp_path / "log")
    chosen = [3, 50, 7, 99, 20, 21, 22]
    est = make(workers)
    history = est.fit(DataLoader(dataset, batch_size=4, sampler=SubsetRandomSampler(chosen)), epochs=2)
    assert Counter(index for _, index, _ in dataset.accesses()) == dict.fromkeys(chosen, 2)
    assert history["rows"] == [7, 7]
    weighted = WeightedRandomSampler([1.0] * 50 + [0.0] * 51, 60)
    est.fit(DataLoader(dataset, batch_size=20, sampler=weighted), epochs=1)
    accesses = dataset.accesses()[14:]
    assert len(accesses) == 60
    assert max(index for _, index, _ in accesses) < 50


def test_fetching_does_not_change_the_random_numbers_of_the_training(local: Context, tmp_path: Path):
    def with_dropout(config: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))

    results = []
    for loaders in (0, 1):
        est = Estimator.from_torch(
            model=with_dropout, optimizer=torch.optim.SGD, loss=nn.MSELoss(), config={"lr": 0.05}, workers=2, seed=1
        )
        est.fit(DataLoader(Crops(tmp_path / "log"), batch_size=BATCH, num_workers=loaders), epochs=2)
        results.append(weights(est))
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])


class Broken(Crops):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 60:
            raise KeyError("no such picture")
        return super().__getitem__(index)


@pytest.mark.parametrize("loaders", [0, 1])
def test_an_error_of_the_dataset_is_reported(local: Context, tmp_path: Path, loaders: int):
    with pytest.raises(WorkerError, match="no such picture"):
        make(2).fit(DataLoader(Broken(tmp_path / "log"), batch_size=BATCH, num_workers=loaders), epochs=1)


def test_an_empty_dataset_is_refused_before_anything_starts(local: Context, tmp_path: Path):
    with pytest.raises(Exception, match="data= gave no rows"):
        make(2).fit(Crops(tmp_path / "log", rows=0), epochs=1)
