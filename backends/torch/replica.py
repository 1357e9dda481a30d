"""One torch model on one rank: its training, evaluation and prediction steps, and its state."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.backends.base import Outcome, Replica, Seat, State, StepOptions
from orca.backends.parts import Parts
from orca.backends.torch import batch_norm, shares
from orca.backends.torch.custom import Step
from orca.backends.torch.losses import Loss, class_weights, label_rules
from orca.backends.torch.state import to_plain, to_torch
from orca.backends.torch.sync import Sync, penalize
from orca.backends.torch.tensors import arrays, feature, first_length, float_type, tensor, tensors_of
from orca.errors import DataError
from orca.launch.base import Rank
from orca.shards.checks import LargestClass, Rules
from orca.shards.feed import Batch
from orca.shards.tree import row_count, take_rows, tree_map

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INITIAL_SCALE, _GROW_AFTER = 2.0**16, 2000


class TorchReplica(Replica):
    """Trains, scores and predicts with one module."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Any,
        sync: Sync | None = None,
        device: torch.device | None = None,
        *,
        precision: str = "fp32",
        sync_batchnorm: bool = False,
        train_step: Callable[[Step], Any] | None = None,
    ) -> None:
        self._device = device or torch.device("cpu")
        self._model = model.to(self._device).train()
        self._optimizer = optimizer
        self._sync = sync or Sync()
        self._arranged = False
        self._names = _input_names(model)
        self._dtype = float_type(model)
        self._loss = Loss(loss, self._dtype, self._device) if loss is not None else None
        self._half = _TYPES.get(precision)
        self._scale = _INITIAL_SCALE if precision == "fp16" else None
        self._good_steps = 0
        self._sync_batchnorm = sync_batchnorm
        self._train_step = train_step
        self.gives_outputs = train_step is None
        self._options = StepOptions()
        self._casts: bool | None = None

    @property
    def inner_model(self) -> nn.Module:
        return self._model

    @property
    def inner_optimizer(self) -> Any:
        return self._sync.optimizer if self._arranged and self._train_step is None else self._optimizer

    def seat(self, place: Rank) -> Seat:
        return self._sync.seat(place)

    def configure(self, options: StepOptions) -> None:
        self._options = options

    def label_rules(self) -> Rules:
        return label_rules(self._loss.own) if self._loss is not None and self._train_step is None else {}

    def expect_classes(self, largest: Mapping[str, LargestClass]) -> None:
        if self._loss is not None:
            self._loss.largest = largest.get("")

    def survey(self, data: Any) -> Any:
        """Return whether these rows have ignored labels, and two rows for a model with lazy layers."""
        labels = data.get("y") if isinstance(data, dict) else None
        ignored = self._loss is not None and self._loss.ignores(labels)
        return ignored, take_rows(data["x"], 0, 2) if _is_lazy(self._model) and isinstance(data, dict) else None

    def agree(self, surveys: list[Any]) -> None:
        if self._loss is not None and any(ignored for share in surveys for ignored, _ in share):
            self._loss.expect_ignored()
        if self._arranged:
            return
        if _is_lazy(self._model):
            # Two rows if possible: batch norm cannot train on one.
            sample = max((sample for share in surveys for _, sample in share if sample is not None), key=row_count)
            with torch.no_grad():
                self._call(self._model, tree_map(self._feature, sample))
        self._arrange()

    def _arrange(self) -> None:
        """Connect to the other ranks, once all parameters have shapes."""
        self._arranged = True
        if self._sync_batchnorm:
            self._model = batch_norm.convert(self._model)
        if self._train_step is None:
            self._sync.attach(self._model, self._optimizer)
        else:
            self._sync.model = self._model
            self._sync.share(self._model)

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        if not self._model.training:
            self._model.train()
        if self._train_step is not None:
            return self._custom_step(batch)
        assert self._loss is not None
        sync = self._sync
        if batch.filler and not sync.lockstep:
            sync.skip()
            return Outcome(0.0, 0.0)
        features, target, weights = self._tensors(batch.data)
        if self._options.class_weight is not None:
            by_class = class_weights(target, self._options.class_weight, self._dtype)
            weights = by_class if weights is None else weights * by_class
        rows = 0 if batch.filler else batch.rows
        pieces = self._pieces(features, target, weights, max(1, min(self._options.accumulate, batch.least)))
        # A rank's mean is weighted by its rows (or their weights), so that the average over ranks is the mean
        # over all rows of the step.
        counts: list[Any] = [self._loss.count(piece[1], 0, piece[2]) for piece in pieces]
        uneven = counts[0] is not None
        # Without lockstep each rank's rows are a step of their own.
        total: Any = batch.total if sync.lockstep else rows * sync.world
        sums = self._loss.sums
        if uneven:
            counts = [count if rows else torch.zeros_like(count) for count in counts]
            total = sync.total(torch.stack([count.reshape(()) for count in counts]).sum())
        else:
            counts = [first_length(piece[0]) if rows else 0 for piece in pieces]
        sync.zero_grad()
        sync.expect(len(pieces))
        loss_sum, loss_count = 0.0, 0.0
        outputs = []
        for number, ((x, y, w), count) in enumerate(zip(pieces, counts, strict=True)):
            with sync.piece(last=number == len(pieces) - 1):
                batch_norm.use(sync, batch.filler)
                self._set_shares(first_length(x) if rows else 0, total=batch.total)
                with self._autocast():
                    output = self._call(sync.forward, x)
                    # The mean over no rows is NaN; a rank without rows only takes part.
                    loss = self._loss(output, y, w) if count else _nothing(output)
                scale = self._share(count, total) if total else 0.0
                scale = scale * self._scale if self._scale is not None else scale
                (loss if isinstance(scale, float) and scale == 1.0 else loss * scale).backward()
            loss_count += float(count)
            loss_sum += loss.item() * (1.0 if sums else float(count))
            if want_output and rows:
                outputs.append(arrays(output))
        shares.use()
        self._apply()
        if not want_output or not rows:
            return Outcome(loss_sum, loss_count)
        output = outputs[0] if len(outputs) == 1 else tree_map(lambda *parts: np.concatenate(parts), *outputs)
        return Outcome(loss_sum, loss_count, arrays(target), output)

    def _set_shares(self, rows: int, total: int) -> None:
        """Tell layers how to weight gradients that they add by themselves."""
        world = self._sync.world if self._sync.lockstep else 1
        scale = self._scale or 1.0
        mean = rows / total * world if self._sync.lockstep else 1.0
        shares.use(scale * world if rows else 0.0, scale * mean)

    def _share(self, count: Any, total: Any) -> Any:
        """Return what a piece's loss is multiplied by, so that the average over the ranks is the step's loss."""
        assert self._loss is not None
        if self._loss.sums:
            return float(self._sync.world if self._sync.lockstep else 1)
        return count / total * self._sync.world

    def _apply(self) -> None:
        """Reduce the gradients, add penalties, clip them and apply them."""
        sync, options = self._sync, self._options
        sync.reduce()
        if self._scale is not None and not self._unscale(self._scale):
            return
        penalize(sync.optimizer)
        if options.on_gradients is not None:
            sync.show_gradients()
            options.on_gradients()
            sync.take_gradients()
        if options.clip_value is not None:
            for value in sync.trained():
                value.grad.clamp_(*options.clip_value)
        if options.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(sync.trained(), options.clip_norm, sync.norm())
        sync.update()

    def _unscale(self, scale: float) -> bool:
        """Undo the fp16 loss scale; on overflow on any rank, skip the step and lower the scale."""
        for value in self._sync.trained():
            value.grad /= scale
        if not math.isfinite(float(self._sync.norm())):
            self._scale, self._good_steps = max(scale / 2, 1.0), 0
            return False
        self._good_steps += 1
        if self._good_steps >= _GROW_AFTER:
            self._scale, self._good_steps = scale * 2, 0
        return True

    @staticmethod
    def _pieces(features: Any, target: Any, weights: Any, count: int) -> list[tuple[Any, Any, Any]]:
        """Split a step's rows into `count` pieces, as on every other rank, because layers may wait for other ranks."""
        if count == 1:
            return [(features, target, weights)]
        rows = first_length(features)
        edges = [rows * number // count for number in range(count + 1)]
        whole = (features, target) if weights is None else (features, target, weights)
        cut = [take_rows(whole, low, high) for low, high in itertools.pairwise(edges)]
        return [(*piece, None)[:3] for piece in cut]

    def _custom_step(self, batch: Batch) -> Outcome:
        assert self._train_step is not None
        data = batch.data
        rows = 0 if batch.filler else batch.rows
        columns = data if isinstance(data, dict) and "x" in data else {"x": data}
        y = columns.get("y")
        step = Step(
            tree_map(self._feature, columns["x"]),
            tree_map(self._target, y) if y is not None else None,
            self._model,
            self._optimizer if isinstance(self._optimizer, dict) else {"optimizer": self._optimizer},
            rows / batch.total,
            self._sync,
            self._options,
            self._autocast,
        )
        batch_norm.use(self._sync, batch.filler)
        result = self._train_step(step)
        losses = result if isinstance(result, dict) else {"loss": result}
        values = {}
        for name, value in losses.items():
            if not isinstance(value, torch.Tensor | float | int):
                raise DataError(f"train_step returned a {type(value).__name__} as {name!r}; expected numbers.")
            values[name] = float(value) * rows
        loss = values.pop("loss") if "loss" in values else sum(values.values())
        return Outcome(loss, float(rows), extra=values)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        model = self._scorer()
        features, target, weights = self._tensors(data)
        with self._autocast():
            output = self._call(model, features)
            count = total = 0.0
            if self._loss is not None:
                rows = first_length(features)
                # Unlike in training, ranks need not count in the same way: inspect these rows.
                exact = self._loss.count(target, rows, weights, exact=True)
                count = float(rows if exact is None else exact)
                share = 1.0 if self._loss.sums else count
                total = float(self._loss(output, target, weights)) * share if count else 0.0
        if not want_output:
            return Outcome(total, count)
        return Outcome(total, count, arrays(target), arrays(output))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def predict_step(self, features: Any) -> Any:
        model = self._scorer()
        with self._autocast():
            return arrays(self._call(model, tree_map(self._feature, features)))

    def _scorer(self) -> nn.Module:
        model = self._sync.scorer() if self._arranged else self._model
        if model.training:
            model.eval()
        return model

    def state(self) -> State:
        sync = self._sync
        if self._train_step is not None and isinstance(self._optimizer, dict):
            optimizer = {name: to_plain(value.state_dict()) for name, value in self._optimizer.items()}
        elif self._optimizer is None:
            optimizer = None
        else:
            plain = not self._arranged or self._train_step is not None
            optimizer = to_plain(self._optimizer.state_dict()) if plain else sync.optimizer_state()
        model = sync.model_state() if self._arranged else to_plain(dict(self._model.state_dict()))
        state: State = {"model": model}
        if optimizer is not None:
            state["optimizer"] = optimizer
        if self._scale is not None:
            state["scale"] = [self._scale, self._good_steps]
        return state

    def save_parts(self, path: str, token: str) -> tuple[State, Parts | None] | None:
        saved = self._sync.save_parts(path, token) if self._arranged and self._optimizer is not None else None
        if saved is not None and self._scale is not None:
            saved[0]["scale"] = [self._scale, self._good_steps]
        return saved

    def load_state(self, state: State) -> None:
        if self._arranged:
            self._sync.load_model_state(state["model"])
        else:
            self._model.load_state_dict(to_torch(state["model"]))
        saved = state.get("optimizer")
        if saved is not None and self._optimizer is not None:
            if isinstance(self._optimizer, dict):
                for name, optimizer in self._optimizer.items():
                    optimizer.load_state_dict(to_torch(saved[name]))
            elif self._arranged and self._train_step is None:
                self._sync.load_optimizer_state(saved)
            else:
                self._optimizer.load_state_dict(to_torch(saved))
        if self._scale is not None and state.get("scale") is not None:
            self._scale, self._good_steps = float(state["scale"][0]), int(state["scale"][1])

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0]))

    def random_state(self) -> dict[str, Any]:
        state = {"cpu": torch.random.get_rng_state().numpy().copy()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device).numpy().copy()
        return state

    def load_random_state(self, state: dict[str, Any]) -> None:
        torch.random.set_rng_state(torch.from_numpy(np.array(state["cpu"])))
        if self._device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(torch.from_numpy(np.array(state["cuda"])), self._device)

    def any(self, flag: bool) -> bool | None:
        if not self._sync.lockstep:
            return None
        return bool(self._sync.total(torch.tensor(float(flag))) > 0)

    def total(self, values: Sequence[float]) -> list[float] | None:
        if not self._sync.lockstep:
            return None
        return [float(value) for value in self._sync.total(torch.tensor(values, dtype=torch.float64))]

    def settle(self) -> None:
        self._sync.settle()

    def learning_rate(self) -> float | None:
        optimizer = self.inner_optimizer
        first = next(iter(optimizer.values())) if isinstance(optimizer, dict) else optimizer
        return float(first.param_groups[0]["lr"]) if first is not None and "lr" in first.param_groups[0] else None

    def _autocast(self) -> Any:
        if self._half is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._half)

    def _tensors(self, data: Any) -> tuple[Any, Any, torch.Tensor | None]:
        if not isinstance(data, dict) or "y" not in data:
            raise DataError('Training and evaluation need labels: give {"x": …, "y": …}, (x, y) or fit(x, y).')
        weights = data.get("w")
        if weights is not None:
            weights = tensor(weights).reshape(-1).to(self._dtype).to(self._device)
        return tree_map(self._feature, data["x"]), tree_map(self._target, data["y"]), weights

    def _feature(self, array: Any) -> torch.Tensor:
        return feature(array, self._dtype).to(self._device)

    def _target(self, array: Any) -> torch.Tensor:
        return self._loss.target(array) if self._loss is not None else tensor(array).to(self._device)

    def _call(self, module: Any, features: Any) -> Any:
        if self._casts:
            features = tree_map(self._as_float, features)
        elif self._casts is None:
            # Only the model knows whether integers are indices or numbers: layers that multiply reject integers.
            self._casts = False
            try:
                return self._forward(module, features)
            except RuntimeError as error:
                if any(value.is_complex() for value in tensors_of(features)):
                    raise DataError(
                        f"Complex data not supported: the model does not take complex features ({error}). Give the "
                        "real and the imaginary parts as features of their own."
                    ) from error
                if "dtype" not in str(error) or all(value.is_floating_point() for value in tensors_of(features)):
                    raise
                self._casts = True
                return self._call(module, features)
        return self._forward(module, features)

    def _as_float(self, value: torch.Tensor) -> torch.Tensor:
        return value if value.is_floating_point() or value.is_complex() else value.to(self._dtype)

    def _forward(self, module: Any, features: Any) -> Any:
        if isinstance(features, dict):
            return module(**features) if set(features) <= self._names else module(features)
        if isinstance(features, list | tuple):
            return module(*features)
        return module(features)


def _nothing(output: Any) -> torch.Tensor:
    """Return a zero loss that still reaches every parameter that the output used."""
    return sum((value.sum() * 0.0 for value in tensors_of(output)), torch.zeros(()))


def _is_lazy(model: nn.Module) -> bool:
    return any(isinstance(value, nn.parameter.UninitializedTensorMixin) for value in model.parameters())


def _input_names(model: nn.Module) -> set[str]:
    try:
        return set(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return set()
