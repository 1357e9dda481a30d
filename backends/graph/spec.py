"""The arguments of `from_graph`: checked and captured on the driver, as a program that runs in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph import default_graph, files
from orca.backends.graph.building import Parts, build
from orca.backends.graph.optimizers import check_optimizer
from orca.backends.graph.program import Array, ConstantFeed, Program
from orca.backends.graph.rates import split_optimizers
from orca.backends.graph.tensors import Resolver, check_loss, check_metrics, ports_of, split_feed
from orca.core.arguments import check_limit, check_mapping, check_path, check_range, check_text, optional, wrong
from orca.errors import ArgumentError
from orca.schedules import LearningRate


@dataclass(frozen=True)
class Live:
    """The user's objects, which stay in this process."""

    graph: Any
    session: Any
    """The user's session, or None."""
    cache: dict[str, Any] = field(default_factory=dict)
    """A session of Orca's on the user's graph, once it was asked for."""


@dataclass(frozen=True)
class GraphSpec:
    """A program, the values that its variables begin with, and settings."""

    program: Program
    values: Mapping[str, Array] = field(default_factory=dict)
    """Values of variables from a session or a file; all others are initialized."""
    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    has_labels: bool = True
    """Whether labels were named; an empty list says that there are none."""
    has_optimizer: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    sync_options: Mapping[str, Any] = field(default_factory=dict)
    live: Live | None = None
    rates: Mapping[str, LearningRate] = field(default_factory=dict)
    """Learning rates that change during a run, by prefix of variable names."""
    score: str | None = None
    """The first metric, which a learning rate may depend on."""

    def travels(self) -> dict[str, object]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None}

    def __deepcopy__(self, memo: Any) -> GraphSpec:
        return self


def capture(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> GraphSpec:
    """Check the arguments of `from_graph` and capture the graph."""
    path, sess = arguments.get("model_path"), arguments.get("sess")
    if path is not None and sess is not None:
        raise ArgumentError("Give one of model_path= and sess=, not both.")
    if sess is not None and not isinstance(sess, v1.Session | v1.InteractiveSession):
        raise wrong("sess", sess, "a tf.Session")
    optimizer, rates = split_optimizers(arguments.get("optimizer"))
    check_optimizer(optimizer)
    signature = optional(check_text)("signature", arguments.get("signature"))
    clip_norm = check_limit("clip_norm", arguments.get("clip_norm"))
    clip_value = check_range("clip_value", arguments.get("clip_value"))
    values: Mapping[str, Array] = {}
    given = dict(arguments)
    graph = None if sess is None else sess.graph
    if path is not None:
        names = [arguments.get("inputs"), arguments.get("outputs")]
        opened = files.open_graph(check_path("model_path", path), signature, *names)
        graph, values = opened.graph, opened.values
        given |= {name: value for name, value in opened.ports.items() if given.get(name) is None}
    parts = _parts(given, graph)
    program = build(parts, optimizer)
    if sess is not None:
        values = _session_values(sess, program)
    default_graph.close(parts.graph)
    known = {variable.name for variable in program.variables}
    return GraphSpec(
        program,
        {name: value for name, value in values.items() if name in known},
        clip_norm,
        clip_value,
        given.get("labels") is not None,
        optimizer is not None,
        dict(given.get("config") or {}),
        dict(options),
        Live(parts.graph, sess),
        rates,
        score_of(given.get("metrics")),
    )


def _parts(given: Mapping[str, Any], graph: Any) -> Parts:
    if given.get("inputs") is None:
        raise ArgumentError("from_graph needs inputs=: the placeholders of the features.")
    resolver = Resolver(graph)
    inputs, input_form = ports_of(resolver.tree("inputs", given["inputs"]), "inputs")
    outputs, output_form = ports_of(_optional(resolver, "outputs", given), "outputs")
    labels, label_form = ports_of(_optional(resolver, "labels", given), "labels")
    loss = None if given.get("loss") is None else resolver.one("loss", given["loss"])
    if loss is not None:
        check_loss(loss)
    metrics = {name: _metric(resolver, name, value) for name, value in check_metrics(given.get("metrics")).items()}
    updates = () if given.get("updates") is None else given["updates"]
    if not isinstance(updates, list | tuple):
        raise wrong("updates", updates, "a list of operations")
    return Parts(
        resolver.graph,
        inputs,
        outputs,
        labels,
        input_form,
        output_form,
        label_form,
        loss,
        metrics,
        [resolver.operation(f"updates[{number}]", update) for number, update in enumerate(updates)],
        _feeds(resolver, given.get("feed_dict")),
    )


def score_of(metrics: Any) -> str | None:
    """Return the name of the first metric, if metrics have names."""
    return str(next(iter(metrics))) if isinstance(metrics, Mapping) and metrics else None


def _optional(resolver: Resolver, argument: str, given: Mapping[str, Any]) -> Any:
    return [] if given.get(argument) is None else resolver.tree(argument, given[argument])


def _metric(resolver: Resolver, name: str, value: Any) -> Any:
    argument = f"metrics[{name!r}]"
    if not isinstance(value, list | tuple):
        return resolver.one(argument, value)
    return resolver.one(argument, value[0]), resolver.operation(argument, value[1])


def _feeds(resolver: Resolver, feed_dict: Any) -> tuple[ConstantFeed, ...]:
    if feed_dict is None:
        return ()
    feeds = []
    for key, value in check_mapping("feed_dict", feed_dict).items():
        tensor = resolver.one("feed_dict", key.deref() if hasattr(key, "deref") else key)
        values = []
        for part in split_feed(tensor.op.name, value):
            try:
                values.append(_constant(part, tensor))
            except (TypeError, ValueError) as error:
                raise ArgumentError(f"feed_dict[{tensor.op.name!r}]={part!r}: {error}") from error
        feeds.append(ConstantFeed(tensor.name, *values))
    return tuple(feeds)


def _constant(value: Any, tensor: Any) -> Array:
    dtype = tensor.dtype.base_dtype.as_numpy_dtype
    array = np.asarray(value)
    result = np.asarray(value, dtype)
    if array.dtype.kind in "iuf" and np.dtype(dtype).kind in "iu" and not np.array_equal(array, result):
        raise ValueError(f"the placeholder takes {np.dtype(dtype)}")
    if not tensor.shape.is_compatible_with(result.shape):
        raise ValueError(f"its shape is {result.shape}, that of the placeholder {tensor.shape}")
    return result


def _session_values(session: Any, program: Program) -> dict[str, Array]:
    """Return the values of the model's variables in a session; those that are not initialized are left out."""
    names = {operation.name for operation in session.graph.get_operations()}
    present = [variable for variable in program.model if variable.name in names]
    try:
        values = session.run([variable.read for variable in present])
        return {variable.name: np.array(value) for variable, value in zip(present, values, strict=True)}
    except v1.errors.FailedPreconditionError:
        found: dict[str, Array] = {}
        for variable in present:
            try:
                found[variable.name] = np.array(session.run(variable.read))
            except v1.errors.FailedPreconditionError:
                continue
        return found
