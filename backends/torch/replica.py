"""One torch model on one rank: steps, state, and the rules that turn arrays into its tensors."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.backends.base import Outcome, Replica, State
from orca.backends.torch.state import to_plain, to_torch
from orca.backends.torch.sync import Alone, Sync
from orca.errors import DataError
from orca.shards.feed import Batch
from orca.shards.tree import tree_map

# Losses that compare output and target number by number: they want floats of the same shape.
_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
)


class TorchReplica(Replica):
    """Trains, scores and predicts with one module."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        loss: Any,
        sync: Sync | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._device = device or torch.device("cpu")
        self._model = model.to(self._device).train()
        self._optimizer = optimizer
        self._loss = loss.to(self._device) if isinstance(loss, nn.Module) else loss
        self._sync: Sync = sync or Alone()
        self._forward = self._sync.attach(self._model, optimizer) if optimizer is not None else self._model
        self._names = _input_names(model)
        self._dtype = next(
            (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()),
            torch.get_default_dtype(),
        )
        self._weighted = _has_weights(loss)
        self._may_ignore = isinstance(loss, nn.NLLLoss | nn.CrossEntropyLoss) and loss.reduction == "mean"

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        assert self._optimizer is not None
        assert self._loss is not None
        if not self._model.training:
            self._model.train()
        features, target = self._tensors(batch.data)
        self._optimizer.zero_grad(set_to_none=True)
        output = self._call(self._forward, features)
        loss = self._compute_loss(output, target)
        rows = 0 if batch.filler else batch.rows
        if self._weighted:
            count = self._weight(target) if rows else torch.zeros((), dtype=self._dtype, device=self._device)
            total = self._sync.total(count)
            share = count / total if total else count
            loss_count = float(count)
            if not loss_count:
                # The mean over nothing is not a number; this rank only takes part.
                loss = output.sum() * 0.0
        else:
            share, loss_count = rows / batch.total, float(rows)
        # Ranks are averaged: weighting each by its rows makes that the mean over all rows of the step.
        scale = share * self._sync.world
        (loss if isinstance(scale, float) and scale == 1.0 else loss * scale).backward()
        self._forward = self._sync.after_backward(self._model, self._forward)
        self._optimizer.step()
        value = loss.item() if loss_count else 0.0
        if not want_output or not rows:
            return Outcome(value * loss_count, loss_count)
        return Outcome(value * loss_count, loss_count, _arrays(target), _arrays(output))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        if self._model.training:
            self._model.eval()
        features, target = self._tensors(data)
        output = self._call(self._model, features)
        count = total = 0.0
        if self._loss is not None:
            # Unlike in training, no other rank has to agree on how to count: look at these very rows.
            exact = self._may_ignore and isinstance(target, torch.Tensor)
            count = float(self._weight(target)) if exact else float(_first_length(features))
            total = float(self._compute_loss(output, target)) * count if count else 0.0
        if not want_output:
            return Outcome(total, count)
        return Outcome(total, count, _arrays(target), _arrays(output))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def predict_step(self, features: Any) -> Any:
        if self._model.training:
            self._model.eval()
        return _arrays(self._call(self._model, tree_map(self._feature, features)))

    def state(self) -> State:
        state: State = {"model": to_plain(dict(self._model.state_dict()))}
        if self._optimizer is not None:
            state["optimizer"] = to_plain(self._optimizer.state_dict())
        return state

    def load_state(self, state: State) -> None:
        self._model.load_state_dict(to_torch(state["model"]))
        if self._optimizer is not None and state.get("optimizer") is not None:
            self._optimizer.load_state_dict(to_torch(state["optimizer"]))

    def survey(self, data: Any) -> bool:
        """Whether some label is to be ignored, which makes the loss's mean another one than that over rows."""
        target = data.get("y") if isinstance(data, dict) else None
        if not self._may_ignore or not isinstance(target, np.ndarray) or target.dtype.kind not in "iu":
            return False
        return bool((target == self._loss.ignore_index).any())

    def agree(self, surveys: list[Any]) -> None:
        self._weighted = self._weighted or any(found for share in surveys for found in share)

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0]))

    def settle(self) -> None:
        self._sync.settle(self._model)

    def learning_rate(self) -> float | None:
        return float(self._optimizer.param_groups[0]["lr"]) if self._optimizer is not None else None

    def _tensors(self, data: Any) -> tuple[Any, Any]:
        if not isinstance(data, dict) or "y" not in data:
            raise DataError('Training and evaluation need labels: give {"x": …, "y": …}, (x, y) or fit(x, y).')
        return tree_map(self._feature, data["x"]), tree_map(self._target, data["y"])

    def _feature(self, array: Any) -> torch.Tensor:
        tensor = _tensor(array)
        # Bytes are pixels or flags, which layers want as floats; wider integers may be indices and stay.
        if tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.int8, torch.bool):
            tensor = tensor.to(self._dtype)
        return tensor.to(self._device)

    def _target(self, array: Any) -> torch.Tensor:
        tensor = _tensor(array)
        if self._may_ignore and tensor.ndim == 1:
            tensor = tensor.to(torch.int64)  # classes, whatever type they were stored in
        elif tensor.is_floating_point() or isinstance(self._loss, _ELEMENTWISE):
            tensor = tensor.to(self._dtype)
        elif tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
        return tensor.to(self._device)

    def _call(self, module: Any, features: Any) -> Any:
        if isinstance(features, dict):
            return module(**features) if set(features) <= self._names else module(features)
        if isinstance(features, list | tuple):
            return module(*features)
        return module(features)

    def _compute_loss(self, output: Any, target: Any) -> torch.Tensor:
        if isinstance(self._loss, _ELEMENTWISE) and isinstance(output, torch.Tensor) and output.shape != target.shape:
            # (n,) against (n, 1) would broadcast to (n, n) and train on nonsense without a word.
            if output.numel() != target.numel() or output.shape[0] != target.shape[0]:
                raise DataError(
                    f"The model's output has shape {tuple(output.shape)}, the labels {tuple(target.shape)}; "
                    f"{type(self._loss).__name__} needs the same number of values per row in both."
                )
            target = target.reshape(output.shape)
        elif (
            isinstance(output, torch.Tensor)
            and isinstance(target, torch.Tensor)
            and target.is_floating_point()
            and output.shape == (*target.shape, 1)
        ):
            target = target.unsqueeze(-1)
        loss = self._loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise DataError(
                f"The loss gave {tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__}; "
                'expected one number, the mean over the rows (reduction="mean").'
            )
        return loss

    def _weight(self, target: torch.Tensor) -> torch.Tensor:
        """What a class-weighted mean divides by: the weights of the rows' own classes."""
        assert isinstance(self._loss, nn.NLLLoss | nn.CrossEntropyLoss)
        if target.is_floating_point():
            # Class probabilities as targets: torch divides by the rows, whatever the weights.
            return torch.tensor(target.numel() // max(target.shape[1], 1), dtype=self._dtype, device=self._device)
        valid = target != self._loss.ignore_index
        if self._loss.weight is None:
            return valid.sum().to(self._dtype)
        return (self._loss.weight[torch.where(valid, target, 0)] * valid).sum().to(self._dtype)


def _has_weights(loss: Any) -> bool:
    """Whether the loss's mean is not the plain mean over rows."""
    if not isinstance(loss, nn.NLLLoss | nn.CrossEntropyLoss) or loss.reduction != "mean":
        return False
    return loss.weight is not None or loss.ignore_index != -100


def _input_names(model: nn.Module) -> set[str]:
    try:
        return set(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return set()


def _first_length(tree: Any) -> int:
    if isinstance(tree, dict):
        return _first_length(next(iter(tree.values())))
    if isinstance(tree, list | tuple):
        return _first_length(tree[0])
    return int(tree.shape[0])


def _tensor(array: Any) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype == object or array.dtype.kind in "USMm":
        raise DataError(f"An array of dtype {array.dtype} cannot become a tensor. Convert it to numbers first.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def _arrays(tree: Any) -> Any:
    """Outputs as arrays, in the model's own structure; nothing is squeezed."""
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if hasattr(tree, "_asdict"):
        return {key: _arrays(value) for key, value in tree._asdict().items()}
    if isinstance(tree, dict):
        return {key: _arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(_arrays(value) for value in tree)
    raise DataError(f"The model returned a {type(tree).__name__}; expected tensors, or tuples or dicts of them.")
