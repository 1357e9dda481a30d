"""The MXNet backends as the estimator sees them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB

from orca.backends.base import Backend, Replica, State
from orca.backends.mxnet.kvstore import role
from orca.backends.mxnet.nets import GluonNet, Net
from orca.backends.mxnet.replica import MXNetReplica, ServingReplica
from orca.backends.mxnet.spec import MXNetSpec
from orca.backends.mxnet.symbol_net import SymbolNet
from orca.backends.mxnet.sync import Sync
from orca.callbacks import Callback, Run
from orca.errors import ArgumentError
from orca.shards.adapters.mxnet_data import DriverStore

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric

Join = Callable[["RankContext", MXNetSpec, int], Sync]


class MXNetBackend(Backend):
    """MXNet models, kept in sync by what `join` returns on each rank."""

    framework = "mxnet"
    preload = ("mxnet", "orca.backends.mxnet.strategies", "orca.backends.worker.training", "orca.launch.exchange")
    preload_shared = False
    files = (".params",)
    exclusive = True

    def __init__(self, name: str, join: Join, options: Sequence[str] = ()) -> None:
        self.name = name
        self._join = join
        self.options = tuple(options)

    def check(self, spec: MXNetSpec, workers: int) -> None:
        self.check_options(spec.sync_options)
        spec.check()
        if self.name == "horovod" and workers > 1:
            from orca.backends.mxnet.horovod_sync import check_installed

            check_installed()

    def check_fit(self, spec: MXNetSpec) -> None:
        if spec.loss_creator is None and isinstance(_known(spec), GluonNet):
            raise ArgumentError(
                "fit needs loss_creator= in from_mxnet: a function fn(config) that returns a gluon loss."
            )

    def check_weights(self, spec: MXNetSpec) -> None:
        if isinstance(_known(spec), SymbolNet):
            raise ArgumentError("sample_weight= and class_weight= are for Gluon models: a Symbol brings its own loss.")

    def travels(self, spec: MXNetSpec) -> dict[str, Any]:
        return {"model_creator": spec.model_creator, "loss_creator": spec.loss_creator, "config": spec.config}

    def workers(self, spec: MXNetSpec, world: int) -> int:
        """How many of the ranks are workers."""
        return world

    def build(self, spec: MXNetSpec, context: RankContext, seed: int) -> Replica:
        use_threads(context.place.threads)
        workers = self.workers(spec, context.place.world)
        join = (lambda: self._join(context, spec, workers)) if context.place.world > 1 else None
        if context.place.rank >= workers:
            assert join is not None
            return ServingReplica(join, workers)
        # The same seed on every rank gives the same first weights; each epoch then starts a stream per rank.
        _seed(seed)
        np.random.seed(seed % 2**32)
        net = spec.make_net()
        return MXNetReplica(net, spec.make_optimizer(net), seed, join, workers)

    def build_alone(self, spec: MXNetSpec, seed: int, threads: int | None) -> MXNetReplica:
        if threads != 0:
            use_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        _seed(seed)
        return MXNetReplica(spec.make_net(), None, seed)

    def model(self, spec: MXNetSpec, state: State | None, seed: int) -> Any:
        _seed(seed)
        net = spec.make_net()
        if state is not None and state["model"]:
            net.load(state["model"])
        return net.model if isinstance(net, GluonNet) else _module(net)

    def state_dict(self, state: State) -> dict[str, Any]:
        return {name: mx.nd.array(value, dtype=value.dtype) for name, value in state["model"].items()}

    def write_model(self, model: Any, path: str) -> None:
        if isinstance(model, mx.mod.Module):
            known = {f"arg:{name}": value for name, value in model._arg_params.items()}
            mx.nd.save(path, {**known, **{f"aux:{name}": value for name, value in model._aux_params.items()}})
        else:
            model.save_parameters(path)

    def read_model(self, spec: MXNetSpec, path: str, custom_objects: Mapping[str, Any] | None) -> State:
        try:
            told = mx.nd.load(path)
        except mx.base.MXNetError as error:
            raise ArgumentError(
                f"path={path!r} is not a file of MXNet parameters: {str(error).splitlines()[0]}"
            ) from None
        return {"model": {name.removeprefix("arg:").removeprefix("aux:"): v.asnumpy() for name, v in told.items()}}

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.mxnet.export import export

        return export(model, kind, path, example)

    def creator_arguments(self, config: dict[str, Any], batch_size: int) -> tuple[Any, ...]:
        return {"batch_size": batch_size, **config}, DriverStore()

    def own_callbacks(self, spec: MXNetSpec) -> Sequence[Callback]:
        interval = spec.config.get("log_interval")
        return [LogLoss(interval)] if interval else []

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        from orca.backends.mxnet.metrics import adapt

        return adapt(metric)

    def tune_metrics(self, spec: MXNetSpec, metrics: list[Metric]) -> list[Metric]:
        loss = _known_loss(spec)
        if not isinstance(loss, mx.gluon.loss.SigmoidBinaryCrossEntropyLoss) or loss._from_sigmoid:
            return metrics
        # This loss takes logits: the border between the two classes is 0, not 0.5.
        return [
            dataclasses.replace(metric, threshold=0.0) if getattr(metric, "threshold", None) == 0.5 else metric  # type: ignore[type-var]
            for metric in metrics
        ]

    def score_name(self, spec: MXNetSpec) -> str:
        loss = _known_loss(spec)
        regression = (mx.gluon.loss.L1Loss, mx.gluon.loss.L2Loss, mx.gluon.loss.HuberLoss)
        return "r2" if isinstance(loss, regression) else "accuracy"

    def notes(self, spec: MXNetSpec) -> Sequence[str]:
        return [f"MXNet {mx.__version__} (legacy), cpu"]


class ServerBackend(MXNetBackend):
    """MXNet's KVStore: servers and a scheduler run beside the workers."""

    rendezvous = "a port held by the scheduler"

    def check(self, spec: MXNetSpec, workers: int) -> None:
        super().check(spec, workers)
        told = spec.sync_options.get("num_servers")
        if told is not None and (isinstance(told, bool) or not isinstance(told, int) or told < 1):
            raise ArgumentError(f"num_servers={told!r}: expected a whole number of at least 1.")

    def ranks(self, spec: MXNetSpec, workers: int) -> int:
        servers = spec.servers(workers)
        return workers + servers + (1 if servers else 0)

    def workers(self, spec: MXNetSpec, world: int) -> int:
        # A rank that is not alone has at least one server beside it.
        servers = 0 if world == 1 else spec.servers(2)
        return world - servers - (1 if servers else 0)

    def roles(self, spec: MXNetSpec, workers: int) -> Sequence[str]:
        servers = spec.servers(workers)
        if not servers:
            return ()
        kinds = [role(rank, workers, servers) for rank in range(self.ranks(spec, workers))]
        return [
            kind if kind == "scheduler" else f"{kind} {kinds[:rank].count(kind)}" for rank, kind in enumerate(kinds)
        ]

    def keeps_step(self, spec: MXNetSpec) -> bool:
        return spec.kvstore != "dist_async"

    def notes(self, spec: MXNetSpec) -> Sequence[str]:
        return [
            *super().notes(spec),
            f"KVStore {spec.kvstore}; servers and the scheduler are the ranks after the workers",
        ]


class LogLoss(Callback):
    """Prints the loss every so many steps, as `create_config(log_interval=…)` asks."""

    acts_on_batches = False

    def __init__(self, interval: int) -> None:
        self._interval = interval

    def after_batch(self, run: Run) -> None:
        if run.rank == 0 and run.batch % self._interval == 0 and run.loss is not None:
            print(f"epoch {run.epoch}, step {run.batch}: loss {run.loss:.4f}")


def use_threads(count: int) -> None:
    """Let MXNet compute with so many threads; in a forked process it would use one."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    _LIB.MXSetNumOMPThreads(count)


def _seed(seed: int) -> None:
    mx.random.seed(seed % 2**31)


def _known(spec: MXNetSpec) -> Net | None:
    """The net as it will be on a rank; None if that cannot be told here."""
    try:
        return spec.make_net()
    except Exception:
        return None


def _known_loss(spec: MXNetSpec) -> Any:
    try:
        return None if spec.loss_creator is None else spec.loss_creator(dict(spec.config))
    except Exception:
        return None


def _module(net: Net) -> Any:
    """A Module with the net's values, to be bound by its user, as after `Module.load`."""
    graph = net.model
    names = {"data_names": graph.inputs, "label_names": graph.labels or None}
    made = mx.mod.Module(graph.symbol, **names, fixed_param_names=list(graph.fixed))
    values = {name: mx.nd.array(value) for name, value in net.values().items()}
    running = set(graph.symbol.list_auxiliary_states())
    made._arg_params = {name: value for name, value in values.items() if name not in running}
    made._aux_params = {name: value for name, value in values.items() if name in running}
    made.params_initialized = bool(values)
    return made
