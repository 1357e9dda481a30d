"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from orca.callbacks.base import Callback, Run
from orca.errors import ArgumentError


class LambdaCallback(Callback):
    """A callback made of functions: ``LambdaCallback(after_epoch=lambda run: print(run.record))``.

    Args:
        **hooks: Functions of the run by the name of their hook in `Callback`.

    Raises:
        ArgumentError: If `Callback` has no hook of that name.
    """

    _hooks: ClassVar[Sequence[str]] = (
        "before_run", "after_run", "before_epoch", "after_epoch", "before_batch", "after_batch", "on_gradients",
    )  # fmt: skip

    def __new__(cls, **hooks: Callable[[Run], None]) -> LambdaCallback:
        for name in hooks:
            if name not in cls._hooks:
                raise ArgumentError(f"LambdaCallback has no hook {name!r}. Hooks: {', '.join(cls._hooks)}.")
        # A subclass per object, so that only these hooks count as overridden.
        subclass = type("LambdaCallback", (cls,), {name: staticmethod(hook) for name, hook in hooks.items()})
        return object.__new__(subclass)

    def __init__(self, **hooks: Callable[[Run], None]) -> None:
        super().__init__()
