"""The Keras backends as the estimator sees them: one replica, with gradients summed in the way the backend names."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.utils.naming import reset_uids

from orca.backends.base import Backend, Replica, State, StepOptions
from orca.backends.keras.engine import LIBRARY
from orca.backends.keras.replica import KerasReplica, build_on
from orca.backends.keras.settings import kept, start_over
from orca.backends.keras.spec import KerasSpec, check_compiled, check_trainable
from orca.backends.keras.state import load_optimizers, load_weights, named_weights, optimizer_state, optimizers_of
from orca.backends.keras.sync import Reducer
from orca.callbacks import Callback, overrides
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

Join = Callable[["RankContext", KerasSpec, int], Reducer]


class KerasBackend(Backend):
    """Keras models on TensorFlow, with gradients added up by what `join` returns on each rank."""

    framework = "keras"
    preload = (LIBRARY, "keras", "orca.backends.keras", "orca.backends.worker.training", "orca.launch.exchange")

    triples = True
    files = (".keras", ".h5", ".hdf5")

    def __init__(self, name: str, join: Join, options: Sequence[str] = ()) -> None:
        self.name = name
        self._join = join
        self.options = tuple(options)

    def check(self, spec: KerasSpec, workers: int) -> None:
        if LIBRARY != "tensorflow" and not (LIBRARY == "torch" and self.name == "multiworker"):
            also = ' On torch there is backend="multiworker", over torch.distributed.' if LIBRARY == "torch" else ""
            raise ArgumentError(
                f"Keras runs on {LIBRARY} here; backend={self.name!r} needs it on TensorFlow: set "
                f"KERAS_BACKEND=tensorflow before the first import of keras.{also}"
            )
        spec.check()
        self.check_options(spec.sync_options)
        compression = spec.sync_options.get("compression")
        if compression not in (None, "fp16"):
            raise ArgumentError(f'compression={compression!r}: expected "fp16" or None.')

    def check_fit(self, spec: KerasSpec) -> None:
        if spec.model is not None:
            check_compiled(spec.model)
            spec.packed()

    def check_steps(self, spec: KerasSpec, options: StepOptions, hooks: Sequence[Callback]) -> None:
        if options.accumulate != 1:
            raise ArgumentError(
                "accumulate= is not for Keras, whose optimizers do it themselves: give the optimizer "
                "gradient_accumulation_steps=."
            )
        for hook in hooks:
            if overrides(hook, "on_gradients"):
                raise ArgumentError(f"{type(hook).__name__}.on_gradients: Keras' steps do not show their gradients.")

    def travels(self, spec: KerasSpec) -> dict[str, Any]:
        return {"model_creator": spec.creator, "compile_args_creator": spec.compile_args, "config": spec.config}

    def build(self, spec: KerasSpec, context: RankContext, seed: int) -> Replica:
        if spec.library != LIBRARY:
            raise ArgumentError(
                f"Keras runs on {LIBRARY} in this worker and on {spec.library} in the driver: set KERAS_BACKEND="
                f"{spec.library} where the workers' processes start."
            )
        prepare(context)
        start_over()
        reset_uids()  # a model's names do not tell how many this process has made before
        number = context.memory["keras.replicas"] = context.memory.get("keras.replicas", 0) + 1
        reducer = Reducer() if context.place.world == 1 else self._join(context, spec, number)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        keras.utils.set_random_seed(seed)
        return self._replica(check_trainable(spec.make_model(), context.place.world), reducer, context)

    def _replica(self, model: Any, reducer: Reducer, context: RankContext) -> KerasReplica:
        return KerasReplica(model, reducer)

    def build_alone(self, spec: KerasSpec, seed: int, threads: int | None) -> Replica:
        if threads != 0:
            wanted = threads or int(os.environ.get("OMP_NUM_THREADS", "1"))
            # Once TensorFlow runs it keeps the threads that it was given then.
            with contextlib.suppress(RuntimeError):
                use_threads(wanted)
        with kept():
            if threads != 0:
                start_over()
            return KerasReplica(self._seeded(spec, seed), trains=False)

    @staticmethod
    def _seeded(spec: KerasSpec, seed: int) -> Any:
        """A model with the first weights that the ranks have; random numbers of this process go on as they were."""
        if spec.creator is None:
            return spec.make_model()
        numbers, arrays = random.getstate(), np.random.get_state()
        try:
            keras.utils.set_random_seed(seed)
            return spec.make_model()
        finally:
            random.setstate(numbers)
            np.random.set_state(arrays)

    def model(self, spec: KerasSpec, state: State | None, seed: int) -> Any:
        with kept():
            model = self._seeded(spec, seed)
        if state:
            if not model.built and state.get("inputs") is not None:
                build_on(model, state["inputs"])
            if not model.built:
                raise ArgumentError(
                    f"The Keras model {model.name!r} does not know its input shape before it is called: begin it with "
                    "keras.Input(shape=…), or build it in model_creator."
                )
            load_weights(model, state["model"])
            load_optimizers(optimizers_of(model), state, model)
        return model

    def write_model(self, model: Any, path: str) -> None:
        if path.endswith(".weights.h5"):
            model.save_weights(path)
        else:
            model.save(path)

    def read_model(self, spec: KerasSpec, path: str, custom_objects: Mapping[str, Any] | None) -> State:
        if not os.path.exists(path):
            raise DataError(f"path={path!r} does not exist.")
        if path.endswith(".weights.h5"):
            with kept():
                model = spec.make_model()
            model.load_weights(path)
            return {"model": named_weights(model)}
        found = keras.models.load_model(path, custom_objects=dict(custom_objects or {}))
        state: State = {"model": named_weights(found)}
        if getattr(found, "optimizer", None) is not None and found.optimizer.built:
            state["optimizer"] = {"optimizer": optimizer_state(found.optimizer)}
        return state

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.keras.export import export

        return export(model, kind, path, example)

    def score_name(self, spec: KerasSpec) -> str:
        loss = getattr(spec.model, "loss", None) if spec.model is not None else None
        name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
        return "accuracy" if loss is None or "crossentropy" in str(name) else "r2"

    def input_count(self, spec: KerasSpec) -> int | None:
        inputs = getattr(spec.model, "inputs", None)
        return len(inputs) if inputs else None

    def adapt_callback(self, callback: object) -> Callback | None:
        from orca.backends.keras.callbacks import adapt

        return adapt(callback)

    def notes(self, spec: KerasSpec) -> Sequence[str]:
        return [f"keras {keras.__version__} on {LIBRARY}"]


def prepare(context: RankContext, devices: int = 1) -> None:
    """Have Keras' library ready in a rank's process."""
    if LIBRARY == "torch":
        use_threads(context.place.threads)
        return
    from orca.backends.keras import cluster

    cluster.prepare(context, devices)


def use_threads(threads: int) -> None:
    if LIBRARY == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)


class ServerBackend(KerasBackend):
    """The parameter server in step: every rank owns a slice of the weights."""

    def check_fit(self, spec: KerasSpec) -> None:
        super().check_fit(spec)
        if spec.model is not None and spec.model.optimizer is not None:
            from orca.backends.keras.slices import check_optimizer

            check_optimizer(spec.model.optimizer)

    def _replica(self, model: Any, reducer: Reducer, context: RankContext) -> KerasReplica:
        from orca.backends.keras.reducers import Collective
        from orca.backends.keras.slices import SlicedReplica

        if isinstance(reducer, Collective):
            return SlicedReplica(model, reducer, context.place.rank)
        return KerasReplica(model, reducer)


class MirroredBackend(KerasBackend):
    """MirroredStrategy: one process for all workers, each a device of the host."""

    def ranks(self, spec: KerasSpec, workers: int) -> int:
        return 1

    def check(self, spec: KerasSpec, workers: int) -> None:
        super().check(spec, workers)
        spec.workers = workers

    def build(self, spec: KerasSpec, context: RankContext, seed: int) -> Replica:
        from orca.backends.keras.mirrored import MirroredReplica

        key = "tensorflow devices"
        if context.memory.get(key) != spec.workers:
            context.memory.pop("tensorflow", None)
            context.memory[key] = spec.workers
        prepare(context, spec.workers)
        start_over()
        reset_uids()
        keras.utils.set_random_seed(seed)
        return MirroredReplica(lambda: check_trainable(spec.make_model(), spec.workers), spec.workers)
