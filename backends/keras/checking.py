"""Checks rows against the declared inputs and outputs of a Keras model, before the first step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from orca.errors import DataError, suggest


def check_rows(model: Any, data: Any) -> None:
    """Raise if a model does not accept such rows; one without declared inputs, or with a custom step, accepts all."""
    inputs = getattr(model, "inputs", None) or []
    if not inputs or not isinstance(data, dict) or type(model).train_step is not keras.Model.train_step:
        return
    declared = _by_name(getattr(model, "_inputs_struct", None), inputs)
    arrays = _arrays(data["x"], declared, isinstance(getattr(model, "_inputs_struct", None), dict))
    for name, array in arrays.items():
        if not _fits(np.shape(array)[1:], tuple(declared[name].shape)[1:]):
            raise DataError(
                f"x of the data has rows of shape {np.shape(array)[1:]} for the model's input {name!r}, which "
                f"expects {tuple(declared[name].shape)[1:]}."
            )
    labels, outputs = data.get("y"), getattr(model, "output_names", None) or []
    if isinstance(labels, dict):
        for name in labels:
            if name not in outputs:
                raise DataError(
                    f"y of the data has an entry {name!r}, but the model's outputs are {', '.join(outputs)}."
                    + suggest(str(name), outputs)
                )
    elif isinstance(labels, list | tuple) and len(labels) != len(outputs):
        raise DataError(f"y of the data has {len(labels)} parts, but the model has {len(outputs)} outputs.")


def _by_name(structure: Any, inputs: Any) -> dict[str, Any]:
    if isinstance(structure, dict) and len(structure) == len(inputs):
        return {str(name): tensor for name, tensor in structure.items() if hasattr(tensor, "shape")}
    return {tensor.name: tensor for tensor in inputs}


def _arrays(features: Any, inputs: dict[str, Any], by_name: bool) -> dict[str, Any]:
    """Return the arrays by input name, as far as the assignment is certain."""
    if isinstance(features, dict):
        missing = [name for name in inputs if name not in features]
        if missing and (by_name or len(features) < len(inputs)):
            raise DataError(
                f"x of the data has no entry for the model's input {missing[0]!r}; its entries are "
                f"{', '.join(map(str, features))}." + suggest(missing[0], map(str, features))
            )
        return {} if missing else {name: features[name] for name in inputs}
    arrays = list(features) if isinstance(features, list | tuple) else [features]
    if len(arrays) != len(inputs):
        raise DataError(
            f"x of the data has {len(arrays)} parts, but the model has {len(inputs)} inputs: {', '.join(inputs)}."
        )
    # Without names, the order of a dict of inputs is up to Keras.
    return {} if by_name and len(inputs) > 1 else dict(zip(inputs, arrays, strict=True))


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    # Keras adds and removes a last axis of size one.
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) + 1 == len(expected) and expected[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(expected) and all(b is None or a == b for a, b in zip(shape, expected, strict=True))
