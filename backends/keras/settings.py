"""Keras' settings of a whole process, which a user's function may change for its own model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras


def _now() -> tuple[Any, str, str]:
    return keras.config.dtype_policy(), keras.config.floatx(), keras.config.image_data_format()


def _use(settings: tuple[Any, str, str]) -> None:
    policy, floatx, image_data_format = settings
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    keras.config.set_image_data_format(image_data_format)


_FIRST = _now()


def start_over() -> None:
    """Have the settings that this process had before any model was made in it."""
    _use(_FIRST)


@contextmanager
def kept() -> Iterator[None]:
    """Put back afterwards what is changed meanwhile."""
    before = _now()
    try:
        yield
    finally:
        _use(before)
