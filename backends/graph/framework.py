"""TensorFlow graphs as a framework: capture, sessions with the learned values, files, and checks of rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow.compat.v1 as v1

from orca.backends.base import Framework, Inputs, State
from orca.backends.graph import files
from orca.backends.graph.feeding import by_port, fitting_shape, wrong_shape
from orca.backends.graph.program import Port
from orca.backends.graph.rates import GraphRates
from orca.backends.graph.replica import check_state
from orca.backends.graph.runner import Runner, assign
from orca.backends.graph.spec import GraphSpec, Live, capture
from orca.backends.graph.tensors import is_tensor_metric
from orca.callbacks import Callback
from orca.errors import ArgumentError, DataError
from orca.metrics import Metric
from orca.shards.tree import leaves

_ARGUMENTS = (
    "inputs", "outputs", "labels", "loss", "optimizer", "metrics", "clip_norm", "clip_value", "updates", "sess",
    "feed_dict", "model_path", "signature", "config",
)  # fmt: skip


class GraphFramework(Framework[GraphSpec]):
    """Graphs with placeholders, in the style of TensorFlow 1."""

    name = "graph"
    arguments = _ARGUMENTS
    aliases: ClassVar[Mapping[str, str]] = {"bigdl": "multiworker", "tf1": "multiworker"}
    metrics_in_spec = True

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> GraphSpec:
        return capture(arguments, options)

    def metrics(self, spec: GraphSpec, metrics: object) -> list[Metric]:
        if isinstance(metrics, Mapping):
            metrics = {name: value for name, value in metrics.items() if not is_tensor_metric(value)}
        return super().metrics(spec, metrics)

    def own_callbacks(self, spec: GraphSpec) -> Sequence[Callback]:
        return [GraphRates(copy.deepcopy(dict(spec.rates)), spec.score)] if spec.rates else []

    def model(self, spec: GraphSpec, state: State | None, seed: int) -> Any:
        """Return a session with the learned values: the user's, or one on the user's graph."""
        if state:
            check_state(spec.program, state)
        live = spec.live
        if live is None:
            runner = Runner(spec.program, seed)
            runner.assign({**spec.values, **_values(state)})
            return runner.session
        session = _session(spec, live, seed)
        known = {variable.name: variable for variable in spec.program.model}
        assign(session, {known[name]: value for name, value in _values(state).items() if name in known})
        return session

    def session(self, spec: GraphSpec, state: State | None, seed: int) -> Any:
        return self.model(spec, state, seed)

    def learned(self, spec: GraphSpec, state: State) -> None:
        if spec.live is not None and spec.live.session is not None:
            self.model(spec, state, 0)

    def write_checkpoint(self, state: State, path: str) -> str:
        return files.write_checkpoint(state, path)

    def read_checkpoint(self, spec: GraphSpec, path: str) -> State:
        return files.read_checkpoint(spec.program, path)

    def export_state(self, spec: GraphSpec, state: State | None, seed: int, kind: str, path: str) -> str:
        from orca.backends.graph.export import export

        return export(spec, state, seed, kind, path)

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        raise ArgumentError(
            "accelerator= is not supported for graphs: call export('openvino', path), and use Estimator.from_openvino."
        )

    def inputs(self, spec: GraphSpec) -> Inputs:
        ports = spec.program.inputs
        return Inputs(len(ports), tuple(port.name for port in ports))

    def flat_counts(self, spec: GraphSpec) -> tuple[int, int] | None:
        return len(spec.program.inputs), len(spec.program.labels)

    def output_count(self, spec: GraphSpec) -> int | None:
        return len(spec.program.outputs)

    def other_kinds(self, spec: GraphSpec) -> str:
        return "US" if any(port.dtype == "string" for port in spec.program.inputs) else ""

    def needs_labels(self, spec: GraphSpec) -> bool:
        return bool(spec.program.labels)

    def needs_labels_to_evaluate(self, spec: GraphSpec) -> bool:
        return bool(spec.program.labels)

    def score_name(self, spec: GraphSpec) -> str:
        labels = spec.program.labels
        return "accuracy" if not labels or labels[0].dtype.startswith(("int", "uint", "bool")) else "r2"

    def check_features(self, spec: GraphSpec, features: Any) -> None:
        if not spec.program.outputs:
            raise ArgumentError("outputs is None; it should not be None in prediction: give outputs= to from_graph.")
        if spec.program.predict_needs:
            raise ArgumentError(
                f"The outputs depend on the labels {', '.join(map(repr, spec.program.predict_needs))}, which predict "
                "does not have."
            )
        _check(features, spec.program.inputs, "x")

    def check_rows(self, spec: GraphSpec, rows: Mapping[str, Any]) -> None:
        if "w" in rows:
            raise DataError(
                "sample_weight= is not supported for graphs, whose loss is a tensor: feed the weights as one more "
                "input or label, and use them in the loss."
            )
        if "y" not in rows and spec.program.labels:
            self.check_features(spec, rows["x"])  # only predict has rows without labels
            return
        _check(rows["x"], spec.program.inputs, "x")
        if "y" in rows:
            _check(rows["y"], spec.program.labels, "y")

    def leaf_types(self, spec: GraphSpec, rows: Mapping[str, Any]) -> Mapping[str, str]:
        types: dict[str, str] = {}
        for part, ports in (("x", spec.program.inputs), ("y", spec.program.labels)):
            if part in rows and ports:
                named = by_port(rows[part], ports, part)
                types |= {f"{part}.{name}" if name else part: port.dtype for name, port in named.items()}
        return types


def _values(state: State | None) -> dict[str, Any]:
    return {} if not state else {**state["model"], **(state.get("optimizer") or {})}


def _session(spec: GraphSpec, live: Live, seed: int) -> Any:
    """Return the user's session, or one of Orca's on the user's graph, made when it is first needed."""
    if live.session is not None:
        return live.session
    if "session" not in live.cache:
        session = v1.Session(graph=live.graph)
        initial = [variable.initializer for variable in live.graph.get_collection("variables")]
        initial += [variable.initializer for variable in live.graph.get_collection("local_variables")]
        session.run(initial)
        if spec.program.tables:
            session.run(list(spec.program.tables))
        # Initializers without a seed draw other numbers than those of the ranks, which the estimator's seed decides.
        runner = Runner(spec.program, seed)
        values = {**runner.values(spec.program.model), **spec.values}
        runner.close()
        known = {variable.name: variable for variable in spec.program.model}
        assign(session, {known[name]: value for name, value in values.items() if name in known})
        live.cache["session"] = session
    return live.cache["session"]


def _check(tree: Any, ports: tuple[Port, ...], part: str) -> None:
    if not ports:
        return
    arrays = dict(leaves(tree))
    for name, port in by_port(tree, ports, part).items():
        shape = tuple(arrays[name].shape[1:])
        if fitting_shape(shape, port.shape) is None:
            raise wrong_shape(shape, port, part)
