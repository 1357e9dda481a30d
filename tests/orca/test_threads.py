"""Several threads use one estimator: no fit is lost."""

from __future__ import annotations

import threading

import numpy as np
import torch

from orca import Estimator
from orca.context import Context


def create_model(config: dict[str, float]) -> torch.nn.Module:
    return torch.nn.Linear(2, 1)


def make() -> Estimator:
    return Estimator.from_torch(
        model=create_model, optimizer=torch.optim.Adam, loss=torch.nn.MSELoss(), config={"lr": 0.1},
        workers=2, seed=3,
    )  # fmt: skip


def test_fits_of_two_threads_follow_one_another(local: Context):
    x = np.arange(40, dtype="f4").reshape(20, 2) / 40
    together, in_turn = make(), make()
    together.get_model()
    threads = [
        threading.Thread(target=together.fit, args=(x, x[:, 0]), kwargs={"epochs": 3, "batch_size": 4})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(2):
        in_turn.fit(x, x[:, 0], epochs=3, batch_size=4)
    assert together.epoch == in_turn.epoch == 6
    for one, two in zip(together.get_state_dict().values(), in_turn.get_state_dict().values(), strict=True):
        np.testing.assert_array_equal(one, two)
