"""Compares rows with what a Keras model knows of its inputs and outputs, before the first step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from orca.errors import DataError, suggest


def check_rows(model: Any, data: Any) -> None:
    """Raise if a model does not take such rows; one that learns its shapes, or has a step of its own, takes all."""
    inputs = getattr(model, "inputs", None) or []
    if not inputs or not isinstance(data, dict) or type(model).train_step is not keras.Model.train_step:
        return
    known = _named(getattr(model, "_inputs_struct", None), inputs)
    given = _given(data["x"], known, isinstance(getattr(model, "_inputs_struct", None), dict))
    for name, array in given.items():
        if not _fits(np.shape(array)[1:], tuple(known[name].shape)[1:]):
            raise DataError(
                f"x of the data has rows of shape {np.shape(array)[1:]} for the input {name!r} of the model, which "
                f"takes {tuple(known[name].shape)[1:]}."
            )
    labels, outputs = data.get("y"), getattr(model, "output_names", None) or []
    if isinstance(labels, dict):
        for name in labels:
            if name not in outputs:
                raise DataError(
                    f"y of the data has an entry {name!r}, but the outputs of the model are {', '.join(outputs)}."
                    + suggest(str(name), outputs)
                )
    elif isinstance(labels, list | tuple) and len(labels) != len(outputs):
        raise DataError(f"y of the data has {len(labels)} parts, but the model has {len(outputs)} outputs.")


def _named(structure: Any, inputs: Any) -> dict[str, Any]:
    if isinstance(structure, dict) and len(structure) == len(inputs):
        return {str(name): tensor for name, tensor in structure.items() if hasattr(tensor, "shape")}
    return {tensor.name: tensor for tensor in inputs}


def _given(features: Any, known: dict[str, Any], by_name: bool) -> dict[str, Any]:
    """The arrays by the inputs that they are for, as far as that is certain."""
    if isinstance(features, dict):
        missing = [name for name in known if name not in features]
        if missing and (by_name or len(features) < len(known)):
            raise DataError(
                f"x of the data has no entry {missing[0]!r} for the input of that name; its entries are "
                f"{', '.join(map(str, features))}." + suggest(missing[0], map(str, features))
            )
        return {} if missing else {name: features[name] for name in known}
    arrays = list(features) if isinstance(features, list | tuple) else [features]
    if len(arrays) != len(known):
        raise DataError(
            f"x of the data has {len(arrays)} parts, but the model has {len(known)} inputs: {', '.join(known)}."
        )
    # Without names the order of a dict of inputs is Keras' own affair.
    return {} if by_name and len(known) > 1 else dict(zip(known, arrays, strict=True))


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    # Keras adds and takes away a last axis of one.
    if len(shape) == len(wanted) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) + 1 == len(wanted) and wanted[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))
