"""Records the arguments of constructors, so that a layer can be saved as the call that creates it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def recorded(function: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that stores the arguments of the outermost call in `arguments`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        if "arguments" not in self.__dict__:
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:
                bound = None  # the constructor itself raises, with Python's own message
            if bound is not None:
                self.arguments = dict(list(bound.arguments.items())[1:])
        function(self, *args, **kwargs)

    return create
