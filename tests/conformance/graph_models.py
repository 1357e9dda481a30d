"""TensorFlow graphs, and what a session of one process makes of them, to compare every backend with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca import Estimator


@dataclass(frozen=True)
class Graph:
    """The tensors of a graph, by their role."""

    graph: Any
    tensors: dict[str, Any]

    def estimator(self, optimizer: Any, workers: int, **more: Any) -> Estimator:
        return Estimator.from_graph(optimizer=optimizer, workers=workers, **{**self.tensors, **more})


def two_classes(resource: bool = True, dropout: float = 0.0, seed: int = 5) -> Graph:
    """Return a network for six numbers per row, whose first weights are the same in each session."""
    graph = v1.Graph()
    with graph.as_default(), v1.variable_scope("net", use_resource=resource):
        v1.set_random_seed(seed)
        x = v1.placeholder(v1.float32, (None, 6), "x")
        y = v1.placeholder(v1.int64, (None,), "y")
        hidden = v1.tanh(dense(x, 8 if not dropout else 40, "hidden"))
        if dropout:
            hidden = v1.nn.dropout(hidden, rate=dropout)
        logits = dense(hidden, 2, "out")
        loss = v1.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    return Graph(graph, {"inputs": x, "outputs": logits, "labels": y, "loss": loss})


def dense(x: Any, units: int, name: str) -> Any:
    """Return a dense layer."""
    with v1.variable_scope(name):
        weights = v1.get_variable("w", (x.shape[-1], units))
        return x @ weights + v1.get_variable("b", (units,), initializer=v1.zeros_initializer())


def sgd() -> Any:
    return v1.train.MomentumOptimizer(0.1, 0.9)


def train_on(batches: Any, graph: Graph, optimizer: Any, steps: int | None = None) -> dict[str, Any]:
    """Train with a hand-written loop of one session; return all variables of the model."""
    copied = v1.Graph()
    with copied.as_default():
        v1.train.import_meta_graph(v1.train.export_meta_graph(graph=graph.graph))
        tensors = {name: copied.get_tensor_by_name(tensor.name) for name, tensor in graph.tensors.items()}
        variables = v1.global_variables()
        with v1.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train = optimizer.minimize(tensors["loss"])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for number, (x, y) in enumerate(batches):
                if number == steps:
                    break
                session.run(train, {tensors["inputs"]: x, tensors["labels"]: y})
            return {one.op.name: np.array(value) for one, value in zip(variables, session.run(variables), strict=True)}


def two_inputs() -> Graph:
    """Two inputs, two outputs by name, and a loss for one of them."""
    graph = v1.Graph()
    with graph.as_default():
        v1.set_random_seed(1)
        left, right = v1.placeholder(v1.float32, (None, 2)), v1.placeholder(v1.float32, (None, 4))
        y = v1.placeholder(v1.float32, (None,), "y")
        joined = dense(left, 3, "left") + dense(right, 3, "right")
        score = dense(joined, 1, "score")
        loss = v1.reduce_mean(v1.square(score[:, 0] - y))
    outputs = {"score": score, "rest": joined}
    return Graph(graph, {"inputs": {"left": left, "right": right}, "outputs": outputs, "labels": y, "loss": loss})
