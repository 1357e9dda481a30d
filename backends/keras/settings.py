"""Keras' process-wide settings, which a user's function may change for its own model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras


def _current() -> tuple[Any, str, str]:
    return keras.config.dtype_policy(), keras.config.floatx(), keras.config.image_data_format()


def _use(settings: tuple[Any, str, str]) -> None:
    policy, floatx, image_data_format = settings
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    keras.config.set_image_data_format(image_data_format)


_INITIAL = _current()


def reset_settings() -> None:
    """Restore the settings that this process had before any model was created in it."""
    _use(_INITIAL)


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore the current settings when the context ends."""
    before = _current()
    try:
        yield
    finally:
        _use(before)
