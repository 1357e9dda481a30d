"""MXNet as a framework: models, parameters, metrics and callbacks, whatever keeps the replicas in sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx

from orca.backends.base import Framework, Inputs, State
from orca.backends.mxnet.nets import GluonNet, Net, label_rules
from orca.backends.mxnet.spec import MXNetSpec
from orca.callbacks import Callback, Run
from orca.core.arguments import check_function, optional
from orca.errors import ArgumentError
from orca.metrics import for_logits, resolve
from orca.shards.adapters.mxnet_data import WholeStore
from orca.shards.checks import Rules

if TYPE_CHECKING:
    from orca.metrics import Metric

_REGRESSION = (mx.gluon.loss.L1Loss, mx.gluon.loss.L2Loss, mx.gluon.loss.HuberLoss)


class MXNetFramework(Framework[MXNetSpec]):
    """Gluon Blocks, Modules and Symbols."""

    name = "mxnet"
    arguments = ("model_creator", "loss_creator", "config", "eval_metrics_creator", "validation_metrics_creator")
    file_suffixes = (".params",)

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> MXNetSpec:
        names = ("eval_metrics_creator", "validation_metrics_creator")
        for name in names:
            optional(partial(check_function, form="fn(config) that returns metrics"))(name, arguments.get(name))
        creators = [arguments.get(name) for name in names]
        return MXNetSpec(
            arguments.get("model_creator"),
            arguments.get("loss_creator"),
            dict(arguments.get("config") or {}),
            dict(options),
            tuple(creator for creator in creators if creator is not None),
        )

    def model(self, spec: MXNetSpec, state: State | None, seed: int) -> Any:
        seed_mxnet(seed)
        net = spec.make_net()
        if state is not None and state["model"]:
            net.load(state["model"])
        return net.model if isinstance(net, GluonNet) else _module(net)

    def state_dict(self, state: State) -> dict[str, Any]:
        return {name: mx.nd.array(value, dtype=value.dtype) for name, value in state["model"].items()}

    def write_model(self, model: Any, path: str) -> None:
        if isinstance(model, mx.mod.Module):
            values = {f"arg:{name}": value for name, value in model._arg_params.items()}
            mx.nd.save(path, {**values, **{f"aux:{name}": value for name, value in model._aux_params.items()}})
        else:
            model.save_parameters(path)

    def read_model(self, spec: MXNetSpec, path: str, custom_objects: Mapping[str, object] | None) -> State:
        try:
            values = mx.nd.load(path)
        except mx.base.MXNetError as error:
            raise ArgumentError(
                f"path={path!r} is not a file of MXNet parameters: {str(error).splitlines()[0]}"
            ) from None
        return {"model": {name.removeprefix("arg:").removeprefix("aux:"): v.asnumpy() for name, v in values.items()}}

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.mxnet.export import export

        return export(model, kind, path, example)

    def metrics(self, spec: MXNetSpec, metrics: object) -> list[Metric]:
        by_name: dict[str, Metric] = {}
        for part in (metrics, *(creator(spec.config) for creator in spec.metric_creators)):
            for metric in resolve(part, adapt=self.adapt_metric, class_axis=self.class_axis):
                by_name.setdefault(metric.name, metric)
        return self.tune_metrics(spec, list(by_name.values()))

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        from orca.backends.mxnet.metrics import adapt

        return adapt(metric)

    def tune_metrics(self, spec: MXNetSpec, metrics: list[Metric]) -> list[Metric]:
        loss = spec.known_loss()
        takes_logits = isinstance(loss, mx.gluon.loss.SigmoidBinaryCrossEntropyLoss) and not loss._from_sigmoid
        return for_logits(metrics) if takes_logits else metrics

    def score_name(self, spec: MXNetSpec) -> str:
        return "r2" if isinstance(spec.known_loss(), _REGRESSION) else "accuracy"

    def inspected_inputs(self, spec: MXNetSpec) -> Inputs:
        net = spec.known_net()
        if isinstance(net, GluonNet):
            return net.inputs()
        return Inputs() if net is None else Inputs(len(net.model.inputs), net.model.inputs)

    def label_rules(self, spec: MXNetSpec) -> Rules:
        return label_rules(spec.known_loss())

    def own_callbacks(self, spec: MXNetSpec) -> Sequence[Callback]:
        interval = spec.config.get("log_interval")
        return [LogLoss(interval)] if interval else []

    def creator_arguments(self, config: Mapping[str, Any], batch_size: int) -> tuple[object, ...]:
        return {"batch_size": batch_size, **config}, WholeStore()

    def default_seed(self, spec: MXNetSpec) -> int | None:
        return spec.config.get("seed")


class LogLoss(Callback):
    """Prints the loss every `interval` steps, for `create_config(log_interval=…)`."""

    acts_on_batches = False

    def __init__(self, interval: int) -> None:
        self._interval = interval

    def after_batch(self, run: Run) -> None:
        if run.rank == 0 and run.batch % self._interval == 0 and run.loss is not None:
            print(f"epoch {run.epoch}, step {run.batch}: loss {run.loss:.4f}")


def seed_mxnet(seed: int) -> None:
    """Seed MXNet's random numbers."""
    mx.random.seed(seed % 2**31)


def _module(net: Net) -> Any:
    """Return a Module with the net's values, to be bound by its user, as after `Module.load`."""
    graph = net.model
    names = {"data_names": graph.inputs, "label_names": graph.labels or None}
    module = mx.mod.Module(graph.symbol, **names, fixed_param_names=list(graph.fixed))
    values = {name: mx.nd.array(value) for name, value in net.values().items()}
    running = set(graph.symbol.list_auxiliary_states())
    module._arg_params = {name: value for name, value in values.items() if name not in running}
    module._aux_params = {name: value for name, value in values.items() if name in running}
    module.params_initialized = bool(values)
    return module
