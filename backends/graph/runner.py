"""A program in a session: builds the graph of a process, and runs its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf import config_pb2

from orca.backends.graph import random_ops
from orca.backends.graph.program import Array, Program, VariableNames, part_of
from orca.errors import DataError

Clip = tuple[float | None, tuple[float, float] | None]
"""The limit of the whole gradient's norm, and that of its values."""


class Runner:
    """A session with one program. With a reducer, gradients are summed over all ranks before they are applied."""

    def __init__(
        self,
        program: Program,
        seed: int,
        *,
        trains: bool = True,
        reducer: Any = None,
        clip: Clip = (None, None),
        pieces: bool = False,
        threads: int = 0,
    ) -> None:
        self.program = program
        self.scale: str | None = None
        """The placeholder of a rank's share of the rows, if gradients are weighted by it."""
        self.gradients: list[str] = []
        """The gradients of one piece of a step's rows, if a step is computed in pieces."""
        self.carried: list[str] = []
        """Placeholders of the sums of the gradients of earlier pieces."""
        graph_def = v1.GraphDef.FromString(program.graph)
        random_ops.seed_nodes(graph_def, program.unseeded, seed)
        self.variables = program.variables if trains else program.model
        self.local = program.local if trains else ()
        if not trains:
            graph_def = self._inference_part(graph_def)
        self.graph = v1.Graph()
        with self.graph.as_default():
            v1.import_graph_def(graph_def, name="")
            if trains and program.train is not None:
                self._rewire(reducer, clip, pieces)
            self._add_random_states(graph_def)
        config = v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2 if threads else 0,
            allow_soft_placement=True,
        )  # fmt: skip
        self.session = v1.Session(graph=self.graph, config=config)
        self._callables: dict[tuple[str, ...], Callable[[Sequence[Any]], list[Any]]] = {}
        initialize(self.session, (*self.variables, *self.local), program)
        self.seed_randoms(random_ops.states(seed, 0, 0, len(program.randoms)))

    def _inference_part(self, graph_def: Any) -> Any:
        """Return the part of the graph that the outputs need, and keep only its variables."""
        program = self.program
        outputs = [port.tensor for port in program.outputs]
        part = part_of(graph_def, outputs)
        names = {node.name for node in part.node}
        self.variables = tuple(variable for variable in program.model if variable.name in names)
        self.local = tuple(variable for variable in program.local if variable.name in names)
        kept = [
            name
            for variable in (*self.variables, *self.local)
            for name in (variable.initializer, variable.initial, variable.read)
        ]
        fed = [port.tensor for port in program.inputs] + [feed.tensor for feed in program.feeds]
        return part_of(graph_def, [*outputs, *kept, *fed, *program.tables])

    def _rewire(self, reducer: Any, clip: Clip, pieces: bool) -> None:
        """Insert sums over pieces and ranks, and the clipping, between the gradients and their application."""
        operations = [self.graph.get_operation_by_name(name) for name in self.program.gradients]
        gradients = [operation.inputs[0] for operation in operations]
        if reducer is None and clip == (None, None) and not pieces:
            return
        scale = None
        if reducer is not None or pieces:
            scale = v1.placeholder(v1.float32, [], "orca_scale")
            self.scale = scale.name
        if pieces:
            self.gradients = [gradient.name for gradient in gradients]
            carried = [v1.placeholder(one.dtype, one.shape, "orca_carried") for one in gradients]
            self.carried = [one.name for one in carried]
            gradients = [a * v1.cast(scale, a.dtype) + b for a, b in zip(gradients, carried, strict=True)]
            scale = v1.constant(1.0)
        if reducer is not None:
            gradients = reducer.sums(gradients, "gradients", scale)
        for operation, gradient in zip(operations, _clipped(gradients, clip), strict=True):
            operation._update_input(0, gradient)

    def _add_random_states(self, graph_def: Any) -> None:
        """Add operations that read and assign the states of random operations."""
        present = {node.attr["shared_name"].s.decode() for node in graph_def.node if node.op == "VarHandleOp"}
        for function in graph_def.library.function:
            present |= {node.attr["shared_name"].s.decode() for node in function.node_def if node.op == "VarHandleOp"}
        self._randoms = [number for number, name in enumerate(self.program.randoms) if name in present]
        if not self._randoms:
            return
        names = [self.program.randoms[number] for number in self._randoms]
        handles = [v1.raw_ops.VarHandleOp(dtype=v1.int64, shape=[3], shared_name=name) for name in names]
        self._random_values = v1.placeholder(v1.int64, [len(handles), 3], "orca_random_values")
        values = v1.unstack(self._random_values)
        self._assign_randoms = v1.group(
            *(
                v1.raw_ops.AssignVariableOp(resource=one, value=value)
                for one, value in zip(handles, values, strict=True)
            )
        )
        self._read_randoms = v1.stack([v1.raw_ops.ReadVariableOp(resource=one, dtype=v1.int64) for one in handles])

    # -- steps

    def run(
        self, fetches: Sequence[str], feeds: Sequence[str], values: Sequence[Any], targets: Sequence[str] = ()
    ) -> list[Any]:
        """Return some tensors, computed together with some operations."""
        key = (*targets, "", *feeds, "", *fetches)
        call = self._callables.get(key)
        if call is None:
            call = self._callables[key] = _callable(self.session, fetches, feeds, targets)
        return call(values)

    def zeros(self) -> list[Array]:
        """Return sums of gradients of no piece; one number where the shape of a gradient is not known."""
        tensors = [self.graph.get_tensor_by_name(name) for name in self.carried]
        shapes = [one.shape.as_list() if one.shape.is_fully_defined() else () for one in tensors]
        return [np.zeros(shape, one.dtype.as_numpy_dtype) for shape, one in zip(shapes, tensors, strict=True)]

    # -- values

    def values(self, variables: Sequence[VariableNames]) -> dict[str, Array]:
        """Return the values of variables by name."""
        values = self.session.run([variable.read for variable in variables])
        return {variable.name: np.array(value) for variable, value in zip(variables, values, strict=True)}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assign values to variables by name."""
        known = {variable.name: variable for variable in (*self.variables, *self.local)}
        assign(self.session, {known[name]: value for name, value in values.items() if name in known})

    def seed_randoms(self, states: Any) -> None:
        """Set the states of all random operations."""
        if self._randoms:
            self.session.run(self._assign_randoms, {self._random_values: np.asarray(states)[self._randoms]})

    def random_states(self) -> Array:
        """Return the states of all random operations."""
        return np.array(self.session.run(self._read_randoms)) if self._randoms else np.zeros((0, 3), np.int64)

    def close(self) -> None:
        self.session.close()


def _callable(
    session: Any, fetches: Sequence[str], feeds: Sequence[str], targets: Sequence[str]
) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function from the values of feeds to those of fetches; `Session.run` would look up names each time."""
    fed = {name: number for number, name in enumerate(feeds)}
    # Each tensor can be fetched once, and not if it is fed.
    distinct = list(dict.fromkeys(name for name in fetches if name not in fed))
    options = config_pb2.CallableOptions(feed=feeds, fetch=distinct, target=targets)
    run = session._make_callable_from_options(options)
    if distinct == list(fetches):
        return lambda values: run(*values)
    places = {name: number for number, name in enumerate(distinct)}

    def call(values: Sequence[Any]) -> list[Any]:
        results = run(*values)
        return [values[fed[name]] if name in fed else results[places[name]] for name in fetches]

    return call


def _clipped(gradients: Sequence[Any], clip: Clip) -> Sequence[Any]:
    norm, limits = clip
    if limits is not None:
        gradients = [v1.clip_by_value(gradient, *limits) for gradient in gradients]
    if norm is not None:
        whole = v1.global_norm([v1.cast(gradient, v1.float32) for gradient in gradients])
        factor = norm / v1.maximum(whole, norm)
        gradients = [gradient * v1.cast(factor, gradient.dtype) for gradient in gradients]
    return gradients


def initialize(session: Any, variables: Sequence[VariableNames], program: Program) -> None:
    """Give variables their initial values, those of the model before those of the optimizer, and fill tables."""
    slots = {variable.name for variable in program.optimizer}
    for group in (
        [one for one in variables if one.name not in slots],
        [one for one in variables if one.name in slots],
    ):
        session.run([one.initializer for one in group])
    if program.tables:
        session.run(list(program.tables))


def assign(session: Any, values: Mapping[VariableNames, Any]) -> None:
    """Assign values to variables of a session, through their initializers, so that the graph does not change."""
    waiting = dict(values)
    while waiting:
        # Variables may share the tensor of their initial value, which can be fed one value at a time.
        together: dict[str, VariableNames] = {}
        for variable in waiting:
            together.setdefault(variable.initial, variable)
        feeds = {initial: np.asarray(waiting[variable]) for initial, variable in together.items()}
        session.run([variable.initializer for variable in together.values()], feeds)
        for variable in together.values():
            del waiting[variable]


def check_values(variables: Sequence[VariableNames], values: Mapping[str, Any], what: str) -> None:
    """Raise unless there is a value of the right shape for each variable."""
    for variable in variables:
        shape = variable.shape
        if variable.name not in values:
            raise DataError(
                f"{what} has no value for the variable {variable.name!r}. It has {', '.join(values) or 'none'}."
            )
        if shape is not None and np.shape(values[variable.name]) != shape:
            raise DataError(
                f"{what} has the shape {np.shape(values[variable.name])} for the variable {variable.name!r}, which has "
                f"{shape}."
            )
