"""A criterion as a loss of the torch replica, which combines its values over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.preprocessing import Preprocessing
from orca.backends.bigdl.tables import each
from orca.backends.torch.losses import ExactLoss
from orca.backends.torch.tensors import tensor
from orca.errors import DataError
from orca.shards.checks import LabelRules, Rules

PADDING = -1
"""The label of rows that criteria with class labels leave out."""


class CriterionLoss(ExactLoss):
    """Computes a criterion of outputs and labels."""

    def __init__(self, criterion: Criterion, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        self.criterion = criterion
        self.reduction = criterion.reduction
        self.module = criterion.loss_module()
        self._preprocessing = preprocessing

    def forward(self, output: Any, target: Any) -> torch.Tensor:
        return self.module(_table(output), _table(target))

    def prepare(self, target: torch.Tensor) -> Any:
        """Return labels as floats, as BigDL has them."""
        value = target if target.is_floating_point() else target.to(torch.get_default_dtype())
        value = value.to(torch.float32) if value.dtype == torch.float64 else value
        return value if self._preprocessing is None else self._preprocessing.apply(value, "labels")

    def row_weight(self, target: Any) -> torch.Tensor | None:
        return self.criterion.row_weight(_table(target))

    def is_uneven(self, labels: Any) -> bool:
        weights = self.row_weight(each(self.prepare, _tensors(labels)))
        return weights is not None and bool((weights != 1).any())

    def label_rules(self, classes: int | None) -> Rules:
        rule = self.criterion.label_rule()
        if rule is None:
            return {}
        lowest, highest = rule
        count = classes if highest is None else highest - lowest + 1
        ignore = PADDING if self._ignores_padding() else None
        name = type(self.criterion).__name__
        return {"": LabelRules(name, classes=True, count=count, ignore=ignore, lowest=lowest)}

    def _ignores_padding(self) -> bool:
        labels = torch.tensor([1.0, float(PADDING)])
        for form in (labels, labels[:, None]):  # one label per row, or one per time step of a row
            try:
                weights = self.row_weight(form)
            except (IndexError, DataError):
                continue
            return weights is not None and weights.numel() > 1 and not float(weights.reshape(-1)[-1])
        return False


def _table(value: Any) -> Any:
    """Return several tensors as a list, as criteria take them."""
    if isinstance(value, dict):
        value = list(value.values())
    return [_table(part) for part in value] if isinstance(value, list | tuple) else value


def _tensors(labels: Any) -> Any:
    if isinstance(labels, dict | list | tuple):
        return [_tensors(part) for part in (labels.values() if isinstance(labels, dict) else labels)]
    return tensor(np.asarray(labels))
