"""Rewrites random operations so that their states are variables, which can be seeded, saved and restored.

TensorFlow's ``RandomUniform`` and its relatives keep a counter that cannot be read, so a resumed run could not repeat
their numbers. ``StatefulUniform`` draws from the same distribution with a counter in a variable. The variable is
referred to by name, so that the rewrite is local and works inside of functions, conditions and loops as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from orca.backends.graph.program import Array, node_of

_REWRITES = {
    "RandomUniform": "StatefulUniform",
    "RandomStandardNormal": "StatefulStandardNormalV2",
    "TruncatedNormal": "StatefulTruncatedNormal",
    "RandomUniformInt": "StatefulUniformInt",
}
_OTHERS = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomCrop",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "FixedUnigramCandidateSampler",
    "LearnedUnigramCandidateSampler",
    "LogUniformCandidateSampler",
    "UniformCandidateSampler",
)
"""Random operations without a counterpart whose state is a variable."""
_PHILOX = 1


def rewrite(nodes: Any, in_function: bool, first: int, prefix: str) -> tuple[list[str], list[str]]:
    """Rewrite the random operations among nodes in place.

    Returns:
        The shared names of the new state variables, and the operations that keep a state of their own.
    """
    names: list[str] = []
    others = [f"{prefix}{node.name} ({node.op})" for node in nodes if node.op in _OTHERS]
    for node in [node for node in nodes if node.op in _REWRITES]:
        shared = f"orca_random_{first + len(names)}"
        names.append(shared)
        operands = list(node.input)
        # Within a loop, nodes without inputs need a control input to run in its frame; functions need none.
        frame = "" if in_function else f"^{node_of(operands[0])}"
        handle, algorithm = nodes.add(), nodes.add()
        _state_handle(handle, f"{node.name}/orca_state", shared, frame)
        _constant(algorithm, f"{node.name}/orca_algorithm", frame)
        shape_dtype, dtype = node.attr["T"].type, _output_dtype(node)
        node.op = _REWRITES[node.op]
        del node.input[:]
        ports = (":resource:0", ":output:0") if in_function else ("", "")
        node.input.extend([handle.name + ports[0], algorithm.name + ports[1], *operands])
        node.attr.clear()
        node.attr["dtype"].type = dtype
        node.attr["shape_dtype"].type = shape_dtype
    return names, others


def _output_dtype(node: Any) -> Any:
    return node.attr["Tout"].type if node.op == "RandomUniformInt" else node.attr["dtype"].type


def _state_handle(node: Any, name: str, shared: str, frame: str) -> None:
    from tensorflow.core.framework import types_pb2

    node.name, node.op = name, "VarHandleOp"
    node.input.extend([frame] if frame else [])
    node.attr["dtype"].type = types_pb2.DT_INT64
    node.attr["shape"].shape.dim.add().size = 3
    node.attr["shared_name"].s = shared.encode()


def _constant(node: Any, name: str, frame: str) -> None:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    node.name, node.op = name, "Const"
    node.input.extend([frame] if frame else [])
    node.attr["dtype"].type = types_pb2.DT_INT64
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_PHILOX, tf.int64))


def states(seed: int, epoch: int, rank: int, count: int) -> Array:
    """Return a first state for each random operation: a counter of zero, and a key of its own."""
    keys = np.random.SeedSequence([seed, epoch, rank]).generate_state(max(count, 1), np.uint64)[:count]
    first = np.zeros((count, 3), np.int64)
    first[:, 2] = keys.view(np.int64)
    return first


def unseeded(nodes: Iterable[Any]) -> list[str]:
    """Return the random operations without a seed, whose numbers differ between processes."""
    random = ("seed", "seed2")
    return [
        node.name
        for node in nodes
        if "seed" in node.attr and "seed2" in node.attr and not any(node.attr[name].i for name in random)
    ]


def seed_nodes(graph_def: Any, names: Iterable[str], seed: int) -> None:
    """Give the random operations of initializers a seed, in place."""
    numbers = {name: number for number, name in enumerate(names)}
    for node in graph_def.node:
        if node.name in numbers:
            words = np.random.SeedSequence([seed, numbers[node.name]]).generate_state(2, np.uint32)
            node.attr["seed"].i, node.attr["seed2"].i = int(words[0]) + 1, int(words[1]) + 1
