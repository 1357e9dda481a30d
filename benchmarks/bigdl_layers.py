"""BigDL layers compared with the same models in plain torch, both trained by one worker of the same backend.

``python benchmarks/bigdl_layers.py`` runs all models; ``mlp``, ``lenet``, ``lstm``, ``gru`` or ``graph`` one of them.
Runs are interleaved. ``--rows`` and ``--turns`` make it smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from comparing import Comparison, Numbers, take_turns
from torch import nn

from orca import Estimator, init_orca_context
from orca.bigdl.nn.criterion import ClassNLLCriterion
from orca.bigdl.nn.layer import (
    GRU,
    LSTM,
    Linear,
    LogSoftMax,
    Model,
    Recurrent,
    ReLU,
    Reshape,
    Select,
    Sequential,
    SpatialConvolution,
    SpatialMaxPooling,
)
from orca.bigdl.optim.optimizer import SGD

BATCH = 64
BARS = {"mlp": 0.97, "lenet": 0.97, "lstm": 0.9, "gru": 0.75, "graph": 0.97}
TURNS = 9


def mlp() -> Sequential:
    """Return three layers."""
    model = Sequential().add(Linear(64, 256)).add(ReLU()).add(Linear(256, 256)).add(ReLU())
    return model.add(Linear(256, 10)).add(LogSoftMax())


def torch_mlp(config: Any) -> nn.Module:
    """Return the same in torch."""
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10), nn.LogSoftmax(1)
    return nn.Sequential(*layers)


def lenet() -> Sequential:
    """Return LeNet for 28 x 28 images."""
    model = Sequential().add(SpatialConvolution(1, 6, 5, 5, 1, 1, 2, 2)).add(ReLU()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(SpatialConvolution(6, 16, 5, 5)).add(ReLU()).add(SpatialMaxPooling(2, 2, 2, 2)).add(Reshape([400]))
    model.add(Linear(400, 120)).add(ReLU()).add(Linear(120, 84)).add(ReLU())
    return model.add(Linear(84, 10)).add(LogSoftMax())


def torch_lenet(config: Any) -> nn.Module:
    """Return the same in torch."""
    first = nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    rest = nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10), nn.LogSoftmax(1)
    return nn.Sequential(*first, *second, *rest)


def graph_lenet() -> Model:
    """Return LeNet as a graph of nodes."""
    layers = lenet().layers
    node = layers[0]()
    start = node
    for layer in layers[1:]:
        node = layer(node)
    return Model([start], [node])


def recurrent(cell: Any) -> Sequential:
    """Return a recurrent network over 50 steps of 32 numbers."""
    model = Sequential().add(Recurrent().add(cell)).add(Select(2, -1))
    return model.add(Linear(64, 10)).add(LogSoftMax())


class TorchRecurrent(nn.Module):
    """The same in torch."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1]).log_softmax(1)


def rows_of(shape: tuple[int, ...], rows: int) -> tuple[Any, Any]:
    """Return random rows and classes from 1."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, *shape)).astype("f4"), rng.integers(1, 11, rows)


def layers_side(model: Any, data: tuple[Any, Any]) -> Callable[[], float]:
    """Return one epoch of BigDL layers, as rows per second."""
    est = Estimator.from_bigdl(
        model=model, loss=ClassNLLCriterion(), optimizer=SGD(0.01), workers=1, seed=0, backend="torch_distributed"
    )
    return lambda: float(est.fit(*data, epochs=1, batch_size=BATCH)["rows_per_s"][-1])


def torch_side(creator: Callable[[Any], nn.Module], data: tuple[Any, Any]) -> Callable[[], float]:
    """Return one epoch of torch, as rows per second; its classes count from 0."""
    x, y = data
    est = Estimator.from_torch(
        model=creator, loss=nn.NLLLoss(), optimizer=torch.optim.SGD, config={"lr": 0.01}, workers=1, seed=0
    )
    return lambda: float(est.fit(x, y - 1, epochs=1, batch_size=BATCH)["rows_per_s"][-1])


def sides(name: str, rows: int) -> dict[str, Callable[[], float]]:
    """Return both sides of a comparison."""
    images = rows_of((1, 28, 28), rows)
    if name == "graph":
        return {"Model": layers_side(graph_lenet(), images), "Sequential": layers_side(lenet(), images)}
    if name == "lenet":
        return {"from_bigdl": layers_side(lenet(), images), "from_torch": torch_side(torch_lenet, images)}
    if name == "mlp":
        data = rows_of((64,), 8 * rows)
        return {"from_bigdl": layers_side(mlp(), data), "from_torch": torch_side(torch_mlp, data)}
    data = rows_of((50, 32), rows)
    cell, kind = (LSTM(32, 64), nn.LSTM) if name == "lstm" else (GRU(32, 64), nn.GRU)
    return {
        "from_bigdl": layers_side(recurrent(cell), data),
        "from_torch": torch_side(lambda config: TorchRecurrent(kind), data),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"{', '.join(BARS)}; by default all")
    parser.add_argument("--rows", type=int, default=12_800)
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    lines = []
    with init_orca_context(cores=1):
        for number, name in enumerate(options.models or BARS, 1):
            both = sides(name, options.rows)
            for side in both.values():
                side()
            results: Numbers = take_turns(both, options.turns, "rows/s")
            lines += Comparison(str(number), name, *both, BARS[name]).lines(results)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
