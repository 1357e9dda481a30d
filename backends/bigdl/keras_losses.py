"""Losses by the names of Keras 1, as criteria; class numbers count from 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from orca.backends.bigdl import criteria_keras as keras
from orca.backends.bigdl.criteria_classes import ClassNLLCriterion
from orca.backends.bigdl.criteria_values import AbsCriterion, BCECriterion, MarginCriterion, MSECriterion
from orca.backends.bigdl.criterion import Criterion
from orca.core.arguments import check_flag, shown
from orca.errors import ArgumentError, suggest


class SparseCategoricalCrossEntropy(ClassNLLCriterion):
    """The cross entropy of probabilities and class numbers.

    Args:
        log_prob_as_input: Whether outputs are logarithms of probabilities.
        zero_based_label: Whether classes count from 0; otherwise they count from 1, and -1 is padding.
        weights: The weights of classes.
        size_average: Whether to divide by the number of rows, or by their weights.
    """

    def __init__(
        self, log_prob_as_input: bool = False, zero_based_label: bool = True, weights: Any = None,
        size_average: bool = True, bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        super().__init__(weights, size_average, log_prob_as_input)
        self._shift = 1 if check_flag("zero_based_label", zero_based_label) else 0

    def label_rule(self) -> tuple[int, int | None] | None:
        rule = super().label_rule()
        if rule is None or not self._shift:
            return rule
        return 0, None if rule[1] is None else rule[1] - 1

    def row_weight(self, target: Any) -> torch.Tensor | None:
        return super().row_weight(target + self._shift)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return super().loss(output, target + self._shift)


LOSSES: dict[str, Callable[[], Criterion]] = {
    "mse": MSECriterion,
    "mean_squared_error": MSECriterion,
    "mae": AbsCriterion,
    "mean_absolute_error": AbsCriterion,
    "binary_crossentropy": BCECriterion,
    "categorical_crossentropy": keras.CategoricalCrossEntropy,
    "sparse_categorical_crossentropy": SparseCategoricalCrossEntropy,
    "hinge": MarginCriterion,
    "squared_hinge": lambda: MarginCriterion(squared=True),
    "mape": keras.MeanAbsolutePercentageCriterion,
    "mean_absolute_percentage_error": keras.MeanAbsolutePercentageCriterion,
    "msle": keras.MeanSquaredLogarithmicCriterion,
    "mean_squared_logarithmic_error": keras.MeanSquaredLogarithmicCriterion,
    "kld": keras.KullbackLeiblerDivergenceCriterion,
    "kullback_leibler_divergence": keras.KullbackLeiblerDivergenceCriterion,
    "poisson": keras.PoissonCriterion,
    "cosine_proximity": keras.CosineProximityCriterion,
}


def as_criterion(loss: Any) -> Criterion:
    """Return a criterion, or that with a name of Keras.

    Raises:
        ArgumentError: If there is no such loss.
    """
    if isinstance(loss, Criterion):
        return loss
    if isinstance(loss, str) and loss.lower() in LOSSES:
        return LOSSES[loss.lower()]()
    hint = suggest(loss.lower(), LOSSES) if isinstance(loss, str) else ""
    raise ArgumentError(f"loss={shown(loss)}: expected a criterion, or one of {', '.join(LOSSES)}.{hint}")
