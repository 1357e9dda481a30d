"""Reads Keras' own files: the model, and the state of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from orca.backends.keras.settings import preserved_settings
from orca.backends.keras.spec import KerasSpec
from orca.backends.keras.state import optimizer_state


def read_file(
    spec: KerasSpec, path: str, custom_objects: Mapping[str, object] | None
) -> tuple[keras.Model, list[Any] | None]:
    """Return the model in a file and the state of its optimizer; None if that has not begun to train."""
    custom = dict(custom_objects or {})
    if path.endswith((".h5", ".hdf5")):
        # Keras itself cannot compile a model from such a file if its loss was given by name, and it drops the
        # optimizer's state. The estimator has its own loss and optimizer.
        model = keras.models.load_model(path, custom_objects=custom, compile=False)
        return model, _hdf5_state(spec, path, model)
    model = keras.models.load_model(path, custom_objects=custom)
    optimizer = getattr(model, "optimizer", None)
    return model, optimizer_state(optimizer) if optimizer is not None and optimizer.built else None


def _hdf5_state(spec: KerasSpec, path: str, model: keras.Model) -> list[Any] | None:
    values = _hdf5_values(path)
    with preserved_settings():
        optimizer = getattr(spec.make_model(), "optimizer", None)
    if not values or optimizer is None:
        return None
    fresh = type(optimizer).from_config(optimizer.get_config())
    without_slots = len(fresh.variables)
    fresh.build(model.trainable_variables)
    return None if len(values) <= without_slots < len(fresh.variables) else values


def _hdf5_values(path: str) -> list[Any]:
    """Return the arrays of the optimizer in an HDF5 file, in their order."""
    import h5py  # type: ignore[import-untyped]
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    with h5py.File(path, "r") as file:
        if "optimizer_weights" not in file:
            return []
        return [np.asarray(value) for value in load_optimizer_weights_from_hdf5_group(file)]
