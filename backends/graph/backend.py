"""The backends of graphs: one replica in a session, with gradients reduced by the strategy of the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from orca.backends.base import Backend, FitCheck, Replica, Traits
from orca.backends.graph.framework import GraphFramework
from orca.backends.graph.replica import GraphReplica
from orca.backends.graph.spec import GraphSpec
from orca.callbacks import overrides
from orca.core.arguments import check_choice
from orca.core.machine import granted_threads
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Join = Callable[["RankContext", GraphSpec, int], Any]

_PRELOAD = (
    "tensorflow", "keras", "orca.backends.graph", "orca.backends.keras.reducers", "orca.backends.worker.training",
    "orca.launch.exchange",
)  # fmt: skip


class GraphBackend(Backend[GraphSpec]):
    """Graphs, with gradients reduced by the reducer that `join` returns on each rank."""

    framework = GraphFramework()

    def __init__(self, name: str, join: Join, options: Sequence[str] = ()) -> None:
        self.name = name
        self.traits = Traits(_PRELOAD, options=tuple(options))
        self._join = join

    def check(self, spec: GraphSpec, workers: int) -> None:
        if spec.sync_options.get("compression") is not None:
            check_choice("compression", spec.sync_options["compression"], ("fp16",), also="None")

    def check_fit(self, spec: GraphSpec, fit: FitCheck) -> None:
        _need("labels", spec.has_labels, "the placeholders of the labels, or labels=[] for a loss without labels")
        _need("loss", spec.program.loss is not None, "a scalar tensor, the mean over the rows")
        _need("optimizer", spec.has_optimizer, "an optimizer such as tf.train.AdamOptimizer()")
        super().check_fit(spec, fit)
        if fit.weighted:
            raise ArgumentError(
                "sample_weight= and class_weight= are not supported for graphs, whose loss is a tensor: feed the "
                "weights as one more input or label, and use them in the loss."
            )
        for callback in fit.callbacks:
            if overrides(callback, "on_gradients"):
                raise ArgumentError(
                    f"{type(callback).__name__}.on_gradients: the steps of a graph do not show their gradients."
                )

    def check_evaluate(self, spec: GraphSpec) -> None:
        program = spec.program
        if program.loss is None and not program.metrics and not program.streams and not program.outputs:
            raise ArgumentError("metrics is None, it should not be None in evaluate: give loss= or metrics=.")

    def build(self, spec: GraphSpec, context: RankContext, seed: int, workers: int) -> Replica:
        from orca.backends.keras import process

        process.prepare(context)
        # Replicas of both frameworks count together, so that no two reductions have the same name.
        number = context.memory["keras.replicas"] = context.memory.get("keras.replicas", 0) + 1
        reducer = None if context.place.world == 1 else self._join(context, spec, number)
        return GraphReplica(spec, seed, reducer, context.place.threads)

    def build_alone(self, spec: GraphSpec, seed: int, threads: int | None) -> Replica:
        return GraphReplica(spec, seed, threads=0 if threads == 0 else threads or granted_threads(), trains=False)

    def notes(self, spec: GraphSpec) -> Sequence[str]:
        program = spec.program
        variables = f"{len(program.model)} variables of the model, {len(program.optimizer)} of the optimizer"
        return [f"tensorflow {tf.__version__}, a graph in a session: {variables}"]


def _need(argument: str, present: bool, what: str) -> None:
    if not present:
        raise ArgumentError(
            f"{argument} is None; it should not be None in training: give from_graph {argument}=, {what}."
        )
