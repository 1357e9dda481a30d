"""Criteria that are made of other criteria."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch

from orca.backends.bigdl.criterion import Criterion
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_count, check_flag, check_number, shown
from orca.errors import ArgumentError, DataError


def check_criterion(name: str, value: Any) -> Criterion:
    """Return a value if it is a criterion."""
    if not isinstance(value, Criterion):
        raise ArgumentError(f"{name}={shown(value)}: expected a criterion, such as MSECriterion().")
    return value


class _Weighted(Criterion):
    """A weighted sum of criteria."""

    def __init__(self) -> None:
        self.parts: list[tuple[Criterion, float]] = []

    def add(self, criterion: Criterion, weight: float = 1.0) -> Self:
        """Append a criterion.

        Args:
            criterion: The criterion.
            weight: Its factor in the sum.

        Returns:
            This criterion.
        """
        self.parts.append((check_criterion("criterion", criterion), check_number("weight", weight)))
        return self

    @property
    def reduction(self) -> Literal["mean", "sum"]:  # type: ignore[override]
        """Whether all criteria are means or all are sums."""
        kinds: set[Literal["mean", "sum"]] = {criterion.reduction for criterion, _ in self.parts}
        if len(kinds) > 1:
            raise ArgumentError(
                f"{type(self).__name__} holds criteria that average over rows and some that sum; such a loss cannot be "
                "combined across workers. Set size_average alike."
            )
        return kinds.pop() if kinds else "mean"

    def _targets(self, target: Any) -> list[Any]:
        raise NotImplementedError

    def row_weight(self, target: Any) -> torch.Tensor | None:
        pairs = zip(self.parts, self._targets(target), strict=False)
        weights = [criterion.row_weight(own) for (criterion, _), own in pairs]
        if all(weight is None for weight in weights):
            return None
        filled = [
            torch.ones_like(next(w for w in weights if w is not None)) if weight is None else weight
            for weight in weights
        ]
        if any(not torch.equal(weight, filled[0]) for weight in filled):
            raise DataError(
                f"{type(self).__name__} holds criteria that weight rows differently (class weights or padding); such a "
                "mean cannot be combined across workers. Use size_average=False."
            )
        return filled[0]


class ParallelCriterion(_Weighted):
    """A weighted sum of criteria, each of one output and one target of two tables.

    Args:
        repeat_target: Whether all criteria share one target.
    """

    def __init__(self, repeat_target: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.repeat = check_flag("repeat_target", repeat_target)

    def _targets(self, target: Any) -> list[Any]:
        if self.repeat:
            return [target] * len(self.parts)
        return list(target) if isinstance(target, list | tuple) else [target]

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        outputs = list(output) if isinstance(output, list | tuple) else [output]
        targets = self._targets(target)
        if len(outputs) < len(self.parts) or len(targets) < len(self.parts) or not self.parts:
            raise DataError(
                f"ParallelCriterion holds {len(self.parts)} criteria; received {len(outputs)} outputs and "
                f"{len(targets)} targets."
            )
        losses = [
            weight * criterion.loss(own, truth)
            for (criterion, weight), own, truth in zip(self.parts, outputs, targets, strict=False)
        ]
        return torch.stack(losses).sum()


class MultiCriterion(_Weighted):
    """A weighted sum of criteria of the same output and target."""

    def __init__(self, bigdl_type: str = "float") -> None:
        super().__init__()

    def _targets(self, target: Any) -> list[Any]:
        return [target] * len(self.parts)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        if not self.parts:
            return output.sum() * 0.0
        return torch.stack([weight * criterion.loss(output, target) for criterion, weight in self.parts]).sum()


class TimeDistributedCriterion(Criterion):
    """A criterion applied to every time step of outputs (batch, time, …), and summed.

    Args:
        criterion: The criterion.
        size_average: Whether to divide by the number of time steps.
        dimension: The dimension of the time steps, counted from 1.
    """

    def __init__(
        self, criterion: Criterion, size_average: bool = False, dimension: int = 2, bigdl_type: str = "float"
    ) -> None:
        self.criterion = check_criterion("criterion", criterion)
        self.average = check_flag("size_average", size_average)
        self.place = check_count("dimension", dimension) - 1
        self.reduction = criterion.reduction

    def label_rule(self) -> tuple[int, int | None] | None:
        return self.criterion.label_rule()

    def row_weight(self, target: Any) -> torch.Tensor | None:
        weights = [self.criterion.row_weight(part) for part in target.unbind(self.place)]
        if any(weight is not None and not torch.equal(weight, torch.ones_like(weight)) for weight in weights):
            raise DataError(
                "TimeDistributedCriterion divides each time step by the weights of its own rows (class weights or "
                "padding); such a mean cannot be combined across workers. Use TimeDistributedMaskCriterion for padding."
            )
        return None

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        if output.shape[self.place] != target.shape[self.place]:
            raise DataError(
                f"The output has {output.shape[self.place]} time steps, the target {target.shape[self.place]}."
            )
        steps = zip(output.unbind(self.place), target.unbind(self.place), strict=True)
        losses = torch.stack([self.criterion.loss(own, truth) for own, truth in steps])
        return losses.mean() if self.average else losses.sum()


class TimeDistributedMaskCriterion(Criterion):
    """A criterion applied to every time step, averaged over the targets that are not padding.

    Args:
        criterion: The criterion.
        padding_value: The target that counts nothing.
    """

    def __init__(self, criterion: Criterion, padding_value: int = 0, bigdl_type: str = "float") -> None:
        self.criterion = check_criterion("criterion", criterion)
        self.padding = int(padding_value)

    def row_weight(self, target: Any) -> torch.Tensor | None:
        return (target != self.padding).to(torch.float32).sum(dim=1)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        if output.shape[1] != target.shape[1]:
            raise DataError(f"The output has {output.shape[1]} time steps, the target {target.shape[1]}.")
        counts = (target != self.padding).sum(dim=0)
        losses = []
        for step, (own, truth) in enumerate(zip(output.unbind(1), target.unbind(1), strict=True)):
            loss = self.criterion.loss(own, truth)
            losses.append(loss * counts[step] if self.criterion.reduction == "mean" else loss)
        return torch.stack(losses).sum() / counts.sum()


class TransformerCriterion(Criterion):
    """A criterion of outputs and targets that layers have transformed.

    Args:
        criterion: The criterion.
        input_transformer: The layer that transforms outputs; its weights are not trained.
        target_transformer: The layer that transforms targets.
    """

    def __init__(
        self,
        criterion: Criterion,
        input_transformer: Layer | None = None,
        target_transformer: Layer | None = None,
        bigdl_type: str = "float",
    ) -> None:
        self.criterion = check_criterion("criterion", criterion)
        for name, layer in (("input_transformer", input_transformer), ("target_transformer", target_transformer)):
            if layer is not None and not isinstance(layer, Layer):
                raise ArgumentError(f"{name}={shown(layer)}: expected a layer.")
        self.of_output, self.of_target = input_transformer, target_transformer
        self.reduction = criterion.reduction

    def label_rule(self) -> tuple[int, int | None] | None:
        return self.criterion.label_rule() if self.of_target is None else None

    def row_weight(self, target: Any) -> torch.Tensor | None:
        return self.criterion.row_weight(self._truth(target))

    def _truth(self, target: Any) -> Any:
        if self.of_target is None:
            return target
        with torch.no_grad():
            return self.of_target.module(target)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        truth = self._truth(target)
        return self.criterion.loss(output if self.of_output is None else self.of_output.module(output), truth)
