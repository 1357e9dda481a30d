"""The arguments of `from_bigdl`: a layer, a criterion and optim methods, turned into what the torch replica takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from orca.backends.base import Inputs
from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.loss import CriterionLoss
from orca.backends.bigdl.optimizers import assigned, create, methods_of
from orca.backends.bigdl.preprocessing import FeatureLabelPreprocessing, Preprocessing, as_preprocessing
from orca.backends.torch.spec import TorchSpec
from orca.core.arguments import shown, wrong
from orca.errors import ArgumentError
from orca.optim_methods import LBFGS, SGD, OptimMethod


class Net(nn.Module):  # type: ignore[misc]
    """A layer's module behind the preprocessing of its features; several features are a list, as layers take them."""

    def __init__(self, layer: Layer, preprocessing: Preprocessing | None) -> None:
        super().__init__()
        self.layers = layer.build_module()
        self._preprocessing = preprocessing

    @property
    def layer(self) -> Any:
        """The layer itself."""
        return self.layers.layer

    def forward(self, *features: Any) -> Any:
        x: Any = features[0] if len(features) == 1 else list(features)
        if isinstance(x, dict):
            x = list(x.values()) if len(x) > 1 else next(iter(x.values()))
        if self._preprocessing is not None:
            x = self._preprocessing.apply(x)
        return self.layers(x)


@dataclass(frozen=True)
class BigDLSpec(TorchSpec):
    """A layer, a criterion and optim methods."""

    feature_preprocessing: Any = None
    label_preprocessing: Any = None
    metrics: Any = None
    """The user's metrics, of which a `Plateau` monitors the first."""

    def travels(self) -> dict[str, object]:
        preprocessing = {"feature_preprocessing": self.features, "label_preprocessing": self.labels}
        return {"model": self.model, "optimizer": self.optimizer, "loss": self.loss, **preprocessing}

    @property
    def methods(self) -> dict[str, OptimMethod]:
        """The optim methods by the names of layers; "" for all layers."""
        return methods_of(SGD() if self.optimizer is None else self.optimizer)

    @property
    def features(self) -> Preprocessing | None:
        """The preprocessing of features."""
        part = as_preprocessing("feature_preprocessing", self.feature_preprocessing)
        return part.feature_transformer if isinstance(part, FeatureLabelPreprocessing) else part

    @property
    def labels(self) -> Preprocessing | None:
        """The preprocessing of labels."""
        part = as_preprocessing("label_preprocessing", self.label_preprocessing)
        if part is None and isinstance(self.feature_preprocessing, FeatureLabelPreprocessing):
            return self.feature_preprocessing.label_transformer
        return part

    def make_model(self) -> Net:
        # The user's own layers stay as they are.
        return Net(copy.deepcopy(self.model), self.features)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        assert isinstance(model, Net)
        if not list(model.parameters()):
            return None  # such a model can still be evaluated
        methods: dict[str, Any] = self.methods
        return create(model.layer, methods.get("", methods))

    def make_loss(self) -> CriterionLoss | None:
        return None if self.loss is None else CriterionLoss(self.loss, self.labels)

    def input_count(self) -> int | None:
        return None

    def inspected_inputs(self) -> Inputs:
        return Inputs()

    def check(self) -> None:
        if not isinstance(self.model, Layer):
            raise wrong("model", self.model, "a layer, such as Sequential().add(Linear(4, 2))")
        if self.loss is not None and not isinstance(self.loss, Criterion):
            raise wrong("loss", self.loss, "a criterion, such as MSECriterion()")
        _check_optimizer(self.optimizer)
        assigned(self.model, self.methods)
        self.check_options()
        for name, part in (("feature_preprocessing", self.features), ("label_preprocessing", self.labels)):
            if isinstance(part, FeatureLabelPreprocessing):
                raise ArgumentError(
                    f"{name}={part!r}: FeatureLabelPreprocessing is for feature_preprocessing=, and stands alone there."
                )

    def check_training(self) -> None:
        if not any(value.requires_grad for value in self.model.module.parameters()):
            raise ArgumentError(f"model={self.model!r} has no weights to train; all of them may be frozen.")

    def check_slices(self, workers: int) -> None:
        if workers > 1 and any(isinstance(method, LBFGS) for method in self.methods.values()):
            raise ArgumentError(
                f"optimizer=LBFGS with workers={workers}: it needs all weights in one place, but the parameter server "
                'splits them into slices. Use backend="torch_distributed", or workers=1.'
            )


def _check_optimizer(optimizer: Any) -> None:
    """Raise unless this is an optim method, or a dict of them by the names of layers."""
    expected = "an optim method, such as Adam(), or a dict of them by the names of layers"
    if optimizer is None or isinstance(optimizer, OptimMethod):
        return
    if not isinstance(optimizer, Mapping) or not optimizer:
        raise wrong("optimizer", optimizer, expected)
    for name, method in optimizer.items():
        if not isinstance(name, str) or not name or not isinstance(method, OptimMethod):
            raise wrong("optimizer", optimizer, expected)
        if isinstance(method, LBFGS):
            raise ArgumentError(f"optimizer={shown(optimizer)}: LBFGS works on all weights together, not by layers.")
