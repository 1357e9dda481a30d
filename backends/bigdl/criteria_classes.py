"""Criteria whose labels are class numbers, which count from 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.samples import JTensor
from orca.core.arguments import check_choice, check_count, check_flag, check_number, shown
from orca.errors import ArgumentError, DataError

_PADDING = -1
"""The label that counts nothing."""


def class_weights(value: Any) -> torch.Tensor | None:
    """Return the weights of classes as a tensor."""
    if value is None:
        return None
    array = np.asarray(value.to_ndarray() if isinstance(value, JTensor) else value)
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise ArgumentError(f"weights={shown(value)}: expected a vector with one weight per class.")
    return torch.tensor(array, dtype=torch.float32)


def class_numbers(criterion: Criterion, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the classes of the labels, counted from 0, one per row."""
    rows = output.shape[0] if output.ndim > 1 else 1
    if target.numel() != rows:
        raise DataError(
            f"The output has shape {tuple(output.shape)} (rows, classes), the labels {tuple(target.shape)}; "
            f"{type(criterion).__name__} needs one class number per row."
        )
    classes = target.reshape(-1).to(torch.int64) - 1
    return classes if output.ndim > 1 else classes[0]


def out_of_range(target: torch.Tensor, count: int) -> DataError:
    """Return the error for a label that is not a class number."""
    labels = target.reshape(-1).to(torch.int64)
    wrong = (labels > count) | ((labels < 1) & (labels != _PADDING))
    row = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    return DataError(f"Row {row} has the label {int(labels[row])}; labels count from 1, expected 1 to {count}.")


class _ByClass(Criterion):
    """A loss of one class number per row, with weights of classes and padding."""

    def __init__(self, weights: Any, size_average: bool) -> None:
        self.weights = class_weights(weights)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def label_rule(self) -> tuple[int, int | None] | None:
        return 1, None if self.weights is None else len(self.weights)

    def row_weight(self, target: Any) -> torch.Tensor | None:
        labels = target.reshape(-1).to(torch.int64)
        valid = labels != _PADDING
        if self.weights is None:
            return valid.to(torch.float32)
        return self.weights[torch.where(valid, labels - 1, 0)] * valid

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        if output.ndim not in (1, 2):
            raise DataError(f"The output has shape {tuple(output.shape)}; {type(self).__name__} needs (rows, classes).")
        classes = class_numbers(self, output, target)
        weights = None if self.weights is None else self.weights.to(output)
        try:
            loss = self._by_class(output, classes, weights)
        except IndexError:
            raise out_of_range(target, output.shape[-1]) from None
        # All labels are padding: torch divides 0 by 0.
        return output.sum() * 0.0 if loss != loss and bool((classes == _PADDING - 1).all()) else loss

    def _by_class(self, output: torch.Tensor, classes: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError


class ClassNLLCriterion(_ByClass):
    """The negative log-likelihood of the right class; the label -1 is padding.

    Args:
        weights: The weights of classes.
        size_average: Whether to divide the sum by the weights of the rows.
        logProbAsInput: Whether outputs are logarithms of probabilities; otherwise they are probabilities.
    """

    def __init__(
        self,
        weights: Any = None,
        size_average: bool = True,
        logProbAsInput: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(weights, size_average)
        self.logarithms = check_flag("logProbAsInput", logProbAsInput)

    def _by_class(self, output: torch.Tensor, classes: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if not self.logarithms:
            # The gradient outside of the bounds is that at the bounds, as in BigDL.
            output = output + (output.clamp(1e-8, 1 - 1e-8) - output).detach()
            output = output.log()
        return F.nll_loss(output, classes, weights, ignore_index=_PADDING - 1, reduction=self.reduction)


class CrossEntropyCriterion(_ByClass):
    """The negative log-likelihood of the right class for outputs before the softmax; the label -1 is padding.

    Args:
        weights: The weights of classes.
        size_average: Whether to divide the sum by the weights of the rows.
    """

    def __init__(self, weights: Any = None, size_average: bool = True, bigdl_type: str = "float") -> None:
        super().__init__(weights, size_average)

    def _by_class(self, output: torch.Tensor, classes: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return F.cross_entropy(output, classes, weights, ignore_index=_PADDING - 1, reduction=self.reduction)


class SoftmaxWithCriterion(Criterion):
    """The negative log-likelihood of the right class at every pixel, for outputs (batch, classes, …).

    Args:
        ignore_label: A label that counts nothing.
        normalize_mode: By what the sum is divided: "VALID" by the labels that count, "FULL" by all, "BATCH_SIZE" by
            the rows, "NONE" by nothing.
    """

    def __init__(
        self, ignore_label: int | None = None, normalize_mode: str = "VALID", bigdl_type: str = "float"
    ) -> None:
        self.ignored = None if ignore_label is None else int(ignore_label)
        self.mode = check_choice("normalize_mode", normalize_mode, ("VALID", "FULL", "BATCH_SIZE", "NONE"))
        self.reduction = "sum" if self.mode == "NONE" else "mean"

    def label_rule(self) -> tuple[int, int | None] | None:
        return (1, None) if self.ignored is None else None

    def row_weight(self, target: Any) -> torch.Tensor | None:
        if self.mode != "VALID" or self.ignored is None:
            return None
        return (target.reshape(target.shape[0], -1) != self.ignored).sum(dim=1).to(torch.float32)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        flat = output.reshape(output.shape[0], output.shape[1], -1)
        if target.numel() != flat.shape[0] * flat.shape[2]:
            raise DataError(f"The output has shape {tuple(output.shape)}, the labels {tuple(target.shape)}.")
        labels = target.reshape(flat.shape[0], flat.shape[2]).to(torch.int64)
        # 0 is not a class number, so -1 after the shift can stand for ignored labels.
        classes = labels - 1 if self.ignored is None else torch.where(labels == self.ignored, -100, labels - 1)
        try:
            total = F.cross_entropy(flat, classes, ignore_index=-100, reduction="sum")
        except IndexError:
            raise out_of_range(target, output.shape[1]) from None
        counts = {
            "VALID": int((classes != -100).sum()) if self.ignored is not None else classes.numel(),
            "FULL": classes.numel(),
            "BATCH_SIZE": len(flat),
            "NONE": 1,
        }
        return total / max(1, counts[self.mode])


class MultiMarginCriterion(Criterion):
    """The hinge loss of the right class against every other, divided by the number of classes.

    Args:
        p: The exponent, 1 or 2.
        weights: The weights of classes.
        margin: The margin.
        size_average: Whether to divide by the number of rows.
    """

    def __init__(
        self,
        p: int = 1,
        weights: Any = None,
        margin: float = 1.0,
        size_average: bool = True,
        bigdl_type: str = "float",
    ) -> None:
        self.p = check_count("p", p, most=2)
        self.weights = class_weights(weights)
        self.margin = check_number("margin", margin)
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def label_rule(self) -> tuple[int, int | None] | None:
        return 1, None if self.weights is None else len(self.weights)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        classes = class_numbers(self, output, target).reshape(-1)
        rows = output.reshape(len(classes), -1)
        weights = None if self.weights is None else self.weights.to(output)
        try:
            return F.multi_margin_loss(rows, classes, self.p, self.margin, weights, reduction=self.reduction)
        except (IndexError, RuntimeError):
            raise out_of_range(target, rows.shape[1]) from None


class MultiLabelMarginCriterion(Criterion):
    """The hinge loss of all right classes against every other; labels are lists of classes that end with 0.

    Args:
        size_average: Whether to divide by the number of rows.
    """

    def __init__(self, size_average: bool = True, bigdl_type: str = "float") -> None:
        self.reduction = "mean" if check_flag("size_average", size_average) else "sum"

    def label_rule(self) -> tuple[int, int | None] | None:
        return 0, None

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        if output.shape != target.shape:
            raise DataError(
                f"The output has shape {tuple(output.shape)}, the labels {tuple(target.shape)}; "
                "MultiLabelMarginCriterion needs as many labels as outputs, filled with 0."
            )
        labels = target.to(torch.int64)
        if int(labels.min()) < 0 or int(labels.max()) > output.shape[-1]:
            wrong = int(labels.min() if labels.min() < 0 else labels.max())
            raise DataError(f"The label {wrong} is out of range; expected 1 to {output.shape[-1]}, or 0 at the end.")
        return F.multilabel_margin_loss(output, labels - 1, reduction=self.reduction)


class ClassSimplexCriterion(Criterion):
    """The mean squared distance to the corner of a simplex that stands for the class.

    Args:
        n_classes: The number of classes.
    """

    def __init__(self, n_classes: int, bigdl_type: str = "float") -> None:
        self.count = check_count("n_classes", n_classes, least=2)
        self.corners = torch.from_numpy(_simplex(self.count)).to(torch.float32)

    def label_rule(self) -> tuple[int, int | None] | None:
        return 1, self.count

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        labels = target.reshape(-1).to(torch.int64)
        if int(labels.min()) < 1 or int(labels.max()) > self.count:
            raise out_of_range(target, self.count)
        corners = self.corners.to(output)[labels - 1]
        if output.numel() != corners.numel():
            raise DataError(f"The output has shape {tuple(output.shape)}; expected {tuple(corners.shape)}.")
        return F.mse_loss(output.reshape(corners.shape), corners)


def _simplex(count: int) -> Any:
    """Return the corners of a regular simplex with unit distance from the origin, one per row; the last column is 0."""
    dims = count - 1
    corners = np.zeros((count, count))
    for k in range(dims):
        corners[k, k] = 1.0 if k == 0 else np.sqrt(1.0 - np.square(corners[k, :k]).sum())
        corners[k + 1 :, k] = (corners[k, k] ** 2 - 1.0 - 1.0 / dims) / corners[k, k]
    return corners
