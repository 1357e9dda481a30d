"""The Keras backends: one replica, with gradients reduced by the synchronization strategy of the backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras.src.utils.naming import reset_uids

from orca.backends.base import Backend, FitCheck, Replica, Topology, Traits
from orca.backends.keras.engine import LIBRARY
from orca.backends.keras.framework import KerasFramework, seeded_model
from orca.backends.keras.replica import KerasReplica
from orca.backends.keras.settings import preserved_settings, reset_settings
from orca.backends.keras.spec import KerasSpec, check_compiled, check_trainable
from orca.backends.keras.sync import Reducer
from orca.callbacks import overrides
from orca.core.arguments import check_choice
from orca.core.machine import granted_threads
from orca.errors import ArgumentError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Join = Callable[["RankContext", KerasSpec, int], Reducer]

_PRELOAD = (LIBRARY, "keras", "orca.backends.keras", "orca.backends.worker.training", "orca.launch.exchange")


class KerasBackend(Backend[KerasSpec]):
    """Keras models, with gradients reduced by the `Reducer` that `join` returns on each rank."""

    framework = KerasFramework()

    def __init__(self, name: str, join: Join, options: Sequence[str] = ()) -> None:
        self.name = name
        self.traits = Traits(_PRELOAD, options=tuple(options))
        self._join = join

    def check(self, spec: KerasSpec, workers: int) -> None:
        if LIBRARY != "tensorflow" and not (LIBRARY == "torch" and self.name == "multiworker"):
            also = ' On torch there is backend="multiworker", over torch.distributed.' if LIBRARY == "torch" else ""
            raise ArgumentError(
                f"Keras runs on {LIBRARY} here; backend={self.name!r} needs it on TensorFlow: set "
                f"KERAS_BACKEND=tensorflow before the first import of keras.{also}"
            )
        spec.check()
        if spec.sync_options.get("compression") is not None:
            check_choice("compression", spec.sync_options["compression"], ("fp16",), also="None")

    def check_fit(self, spec: KerasSpec, fit: FitCheck) -> None:
        if spec.model is not None:
            check_compiled(spec.model)
            spec.packed  # noqa: B018 - raises if the model cannot be sent to the ranks
        super().check_fit(spec, fit)
        if fit.options.accumulate != 1:
            raise ArgumentError(
                "accumulate= is not for Keras, whose optimizers do it themselves: give the optimizer "
                "gradient_accumulation_steps=."
            )
        for callback in fit.callbacks:
            if overrides(callback, "on_gradients"):
                raise ArgumentError(
                    f"{type(callback).__name__}.on_gradients: Keras' steps do not show their gradients."
                )

    def build(self, spec: KerasSpec, context: RankContext, seed: int, workers: int) -> Replica:
        if spec.library != LIBRARY:
            raise ArgumentError(
                f"Keras runs on {LIBRARY} in this worker and on {spec.library} in the driver: set KERAS_BACKEND="
                f"{spec.library} where the workers' processes start."
            )
        prepare(context)
        reset_settings()
        reset_uids()  # a model's names must not depend on the models this process has created before
        number = context.memory["keras.replicas"] = context.memory.get("keras.replicas", 0) + 1
        reducer = Reducer() if context.place.world == 1 else self._join(context, spec, number)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        keras.utils.set_random_seed(seed)
        return self._replica(check_trainable(spec.make_model(), context.place.world), reducer, context)

    def _replica(self, model: Any, reducer: Reducer, context: RankContext) -> KerasReplica:
        return KerasReplica(model, reducer)

    def build_alone(self, spec: KerasSpec, seed: int, threads: int | None) -> Replica:
        if threads != 0:
            # Once TensorFlow runs, its number of threads is fixed.
            with contextlib.suppress(RuntimeError):
                use_threads(threads or granted_threads())
        with preserved_settings():
            if threads != 0:
                reset_settings()
            return KerasReplica(seeded_model(spec, seed), trains=False)

    def notes(self, spec: KerasSpec) -> Sequence[str]:
        return [f"keras {keras.__version__} on {LIBRARY}"]


class ServerBackend(KerasBackend):
    """The synchronous parameter server: every rank owns a slice of the weights."""

    def check_fit(self, spec: KerasSpec, fit: FitCheck) -> None:
        super().check_fit(spec, fit)
        if spec.model is not None and spec.model.optimizer is not None:
            from orca.backends.keras.slices import check_optimizer

            check_optimizer(spec.model.optimizer)

    def _replica(self, model: Any, reducer: Reducer, context: RankContext) -> KerasReplica:
        from orca.backends.keras.reducers import MeshReducer
        from orca.backends.keras.slices import SlicedReplica

        if isinstance(reducer, MeshReducer):
            return SlicedReplica(model, reducer, context.place.rank)
        return KerasReplica(model, reducer)


class MirroredBackend(KerasBackend):
    """MirroredStrategy: one process for all workers, each a device of the host."""

    def topology(self, spec: KerasSpec, workers: int) -> Topology:
        return Topology(1)

    def build(self, spec: KerasSpec, context: RankContext, seed: int, workers: int) -> Replica:
        from orca.backends.keras.mirrored import MirroredReplica

        key = "tensorflow devices"
        if context.memory.get(key) != workers:
            context.memory.pop("tensorflow", None)
            context.memory[key] = workers
        prepare(context, workers)
        reset_settings()
        reset_uids()
        keras.utils.set_random_seed(seed)
        return MirroredReplica(lambda: check_trainable(spec.make_model(), workers), workers)


def prepare(context: RankContext, devices: int = 1) -> None:
    """Set up Keras' library in a rank's process."""
    if LIBRARY == "torch":
        use_threads(context.place.threads)
        return
    from orca.backends.keras import process

    process.prepare(context, devices)


def use_threads(threads: int) -> None:
    """Set the number of threads of Keras' library."""
    if LIBRARY == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
