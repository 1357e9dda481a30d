"""PyTorch as a framework: models, weights, metrics and callbacks, whatever keeps the replicas in sync."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from orca.backends.base import Framework, Inputs, State
from orca.backends.torch.layers import check_width, first_linear, last_linear
from orca.backends.torch.losses import label_rules
from orca.backends.torch.spec import TorchSpec
from orca.backends.torch.state import to_torch
from orca.callbacks import LRScheduler
from orca.metrics import for_logits
from orca.shards.checks import Rules

if TYPE_CHECKING:
    from orca.metrics import Metric

_CLASSIFIES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss, torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss)


class TorchFramework(Framework[TorchSpec]):
    """Modules of torch."""

    name = "torch"
    arguments: tuple[str, ...] = (
        "model",
        "optimizer",
        "loss",
        "scheduler_creator",
        "scheduler_step",
        "config",
        "precision",
        "sync_batchnorm",
        "train_step",
    )
    aliases: ClassVar[Mapping[str, str]] = {
        "ddp": "torch_distributed",
        "torch.distributed": "torch_distributed",
        "bigdl": "parameter_server",
        "ps": "parameter_server",
    }
    class_axis = 1

    def spec(self, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> TorchSpec:
        return TorchSpec(
            **{"model": None, **arguments, "config": dict(arguments.get("config") or {})}, sync_options=dict(options)
        )

    def model(self, spec: TorchSpec, state: State | None, seed: int) -> torch.nn.Module:
        torch_state = torch.random.get_rng_state()
        try:
            torch.manual_seed(seed)
            # The user's own object stays as it was.
            model = copy.deepcopy(spec.model) if isinstance(spec.model, torch.nn.Module) else spec.make_model()
        finally:
            torch.random.set_rng_state(torch_state)
        if state is not None:
            model.load_state_dict(to_torch(state["model"]))
        return model

    def state_dict(self, state: State) -> dict[str, Any]:
        return dict(to_torch(state["model"]))

    def export(self, model: Any, kind: str, path: str, example: Any) -> str:
        from orca.backends.torch.export import export

        return export(model, kind, path, example)

    def inputs(self, spec: TorchSpec) -> Inputs:
        return Inputs(spec.input_count())

    def inspected_inputs(self, spec: TorchSpec) -> Inputs:
        return spec.inspected_inputs()

    def output_count(self, spec: TorchSpec) -> int | None:
        return None if last_linear(spec.model) is None else 1

    def other_kinds(self, spec: TorchSpec) -> str:
        # A model's own code may take complex numbers apart, or has complex weights.
        first = first_linear(spec.model)
        return "" if first is not None and not first.weight.is_complex() else "c"

    def label_rules(self, spec: TorchSpec) -> Rules:
        if spec.train_step is not None:
            return {}
        last = last_linear(spec.model)
        return label_rules(spec.known_loss(), None if last is None else last.out_features)

    def check_features(self, spec: TorchSpec, features: Any) -> None:
        check_width(spec.model, features)

    def needs_labels(self, spec: TorchSpec) -> bool:
        # A custom step may train without labels.
        return spec.train_step is None

    def adapt_metric(self, metric: object) -> Metric | list[Metric] | None:
        from orca.backends.torch.metrics import adapt

        return adapt(metric)

    def tune_metrics(self, spec: TorchSpec, metrics: list[Metric]) -> list[Metric]:
        return for_logits(metrics) if isinstance(spec.known_loss(), torch.nn.BCEWithLogitsLoss) else metrics

    def score_name(self, spec: TorchSpec) -> str:
        return "accuracy" if isinstance(spec.known_loss(), _CLASSIFIES) else "r2"

    def own_callbacks(self, spec: TorchSpec) -> Sequence[LRScheduler]:
        if spec.scheduler_creator is None:
            return ()
        return [LRScheduler(spec.scheduler_creator, per=spec.scheduler_step)]
