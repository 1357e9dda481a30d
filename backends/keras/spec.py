"""What the user gave to `from_keras`, checked on the driver and turned into a compiled model on the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from orca.backends.keras.engine import LIBRARY
from orca.backends.keras.packing import Packed, pack
from orca.errors import ArgumentError


@dataclass
class KerasSpec:
    """A compiled model, or a function that makes one."""

    model: Any = None
    creator: Callable[..., Any] | None = None
    compile_args: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sync_options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    library: str = LIBRARY
    _packed: Packed | None = None

    def make_model(self) -> Any:
        """A model of this process's own, compiled."""
        if self.creator is None:
            return self.packed().open()
        made = self.creator(self.config)
        if not isinstance(made, keras.Model):
            raise ArgumentError(
                f"model_creator= returned a {type(made).__name__}; expected a keras.Model. Let it return the model."
            )
        if self.compile_args is not None:
            arguments = self.compile_args(self.config)
            if not isinstance(arguments, dict):
                raise ArgumentError(
                    f"compile_args_creator= returned a {type(arguments).__name__}; expected a dict of arguments for "
                    "model.compile."
                )
            made.compile(**arguments)
        return made

    def packed(self) -> Packed:
        if self._packed is None:
            self._packed = pack(self.model)
        return self._packed

    def known_model(self) -> Any:
        """The model as far as it can be looked at without calling the user's function."""
        return self.model

    def check(self) -> None:
        if (self.model is None) == (self.creator is None):
            raise ArgumentError("from_keras needs either a compiled model (model=) or model_creator=fn(config).")
        if self.creator is not None and not callable(self.creator):
            raise ArgumentError(f"model_creator={self.creator!r}: expected a function fn(config) that returns a model.")
        if self.compile_args is not None and not callable(self.compile_args):
            raise ArgumentError(
                f"compile_args_creator={self.compile_args!r}: expected a function fn(config) that returns a dict."
            )
        if self.model is not None:
            if not isinstance(self.model, keras.Model):
                if callable(self.model):
                    raise ArgumentError("model= is a function: give it as model_creator=.")
                raise ArgumentError(f"model={self.model!r}: expected a compiled keras.Model.")
            if self.compile_args is not None:
                raise ArgumentError("compile_args_creator= goes with model_creator=; compile a model of your own.")

    def __getstate__(self) -> dict[str, Any]:
        """The model travels as bytes."""
        packed = self.packed() if self.creator is None else None
        return {**self.__dict__, "model": None, "_packed": packed}

    def __deepcopy__(self, memo: Any) -> KerasSpec:
        return self


def check_compiled(model: Any) -> Any:
    """Return the model if it can be trained."""
    if not getattr(model, "compiled", False):
        raise ArgumentError(
            f"The Keras model {model.name!r} is not compiled: call model.compile(optimizer=…, loss=…) first."
        )
    return model
