"""Small models and a plain single-process training loop to compare every backend with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


def make_data(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Return rows of two classes that a small network can learn, as float32 and int64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype("float32")
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype("int64")
    return x, y


def model_creator(config: dict[str, Any]) -> nn.Module:
    """Create a network that does not depend on how rows are grouped (no batch norm, no dropout)."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def global_order(rows: int, batch_size: int, seed: int, epoch: int, shuffle: bool) -> Array:
    """Return the documented row order of an epoch: the next row of each lane in turn, each lane shuffled by itself."""
    if not shuffle:
        return np.arange(rows)
    key = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    numbers = np.random.Philox(key=key).random_raw(rows)
    lanes = [lane[np.argsort(numbers[lane])] for lane in np.array_split(np.arange(rows), batch_size)]
    return np.array([lane[step] for step in range(len(lanes[0])) for lane in lanes if step < len(lane)])


def train_alone(
    x: Array,
    y: Array,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    shuffle: bool = True,
    lr: float = 0.1,
    loss: nn.Module | None = None,
) -> nn.Module:
    """Train with plain torch in one process, on the same batches."""
    torch.manual_seed(seed)
    model = model_creator({})
    optimizer = optimizer_creator(model, {"lr": lr})
    criterion = loss or nn.CrossEntropyLoss()
    for epoch in range(epochs):
        order = global_order(len(x), batch_size, seed, epoch, shuffle)
        for start in range(0, len(x), batch_size):
            index = order[start : start + batch_size]
            optimizer.zero_grad()
            criterion(model(torch.from_numpy(x[index])), torch.from_numpy(y[index])).backward()
            optimizer.step()
    return model
