"""The arguments of `from_keras`: checked on the driver, turned into a compiled model on the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras

from orca.backends.keras.engine import LIBRARY
from orca.backends.keras.packing import Packed, pack
from orca.core.arguments import check_function, wrong
from orca.errors import ArgumentError

_MEANS = ("sum_over_batch_size", "mean")


@dataclass(frozen=True)
class KerasSpec:
    """A compiled model, or a function that makes one."""

    model: Any = None
    creator: Callable[..., Any] | None = None
    compile_args: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sync_options: Mapping[str, Any] = field(default_factory=dict)
    library: str = LIBRARY

    def travels(self) -> dict[str, object]:
        return {"model_creator": self.creator, "compile_args_creator": self.compile_args, "config": self.config}

    def make_model(self) -> Any:
        """Create a compiled model for this process."""
        if self.creator is None:
            return self.packed.open()
        model = self.creator(self.config)
        if not isinstance(model, keras.Model):
            raise ArgumentError(
                f"model_creator= returned a {type(model).__name__}; expected a keras.Model. Let it return the model."
            )
        if self.compile_args is not None:
            arguments = self.compile_args(self.config)
            if not isinstance(arguments, dict):
                raise ArgumentError(
                    f"compile_args_creator= returned a {type(arguments).__name__}; expected a dict of arguments for "
                    "model.compile."
                )
            model.compile(**arguments)
        return model

    @cached_property
    def packed(self) -> Packed:
        """The model as bytes."""
        return pack(self.model)

    def check(self) -> None:
        if (self.model is None) == (self.creator is None):
            raise ArgumentError("from_keras needs either a compiled model (model=) or model_creator=fn(config).")
        if self.creator is not None:
            check_function("model_creator", self.creator, "fn(config) that returns a keras.Model")
        if self.compile_args is not None:
            check_function("compile_args_creator", self.compile_args, "fn(config) that returns a dict")
        if self.model is not None:
            if not isinstance(self.model, keras.Model):
                if callable(self.model):
                    raise ArgumentError("model= is a function: give it as model_creator=.")
                raise wrong("model", self.model, "a compiled keras.Model")
            if self.compile_args is not None:
                raise ArgumentError("compile_args_creator= goes with model_creator=; compile a model of your own.")

    def __getstate__(self) -> dict[str, Any]:
        """Send the model as bytes."""
        packed = {"packed": self.packed} if self.creator is None else {}
        return {**self.__dict__, "model": None, **packed}

    def __deepcopy__(self, memo: Any) -> KerasSpec:
        return self


def check_trainable(model: Any, workers: int) -> Any:
    """Return the model if that many workers can train it together."""
    check_compiled(model)
    wrong = [loss for loss in _losses(model.loss) if getattr(loss, "reduction", None) not in (None, *_MEANS)]
    if workers > 1 and wrong:
        raise ArgumentError(
            f"The loss {wrong[0].name!r} has reduction={wrong[0].reduction!r}, which workers cannot combine across "
            'their rows. Use reduction="sum_over_batch_size", the mean over the rows, or workers=1.'
        )
    return model


def _losses(loss: Any) -> list[Any]:
    if isinstance(loss, dict):
        loss = list(loss.values())
    return [part for one in loss for part in _losses(one)] if isinstance(loss, list | tuple) else [loss]


def check_compiled(model: Any) -> Any:
    """Return the model if it can be trained."""
    if not getattr(model, "compiled", False):
        raise ArgumentError(
            f"The Keras model {model.name!r} is not compiled: call model.compile(optimizer=…, loss=…) first."
        )
    return model
