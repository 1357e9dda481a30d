"""Checks rows against the declared inputs, outputs and losses of a Keras model, before the first step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from orca.errors import DataError, suggest
from orca.shards.checks import LabelRules, LargestClass, Rules

_OUT_OF_RANGE = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


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


def label_rules(model: Any) -> Rules:
    """Return what a model's losses accept as labels, by number and name of the output; {} for a custom step."""
    loss = getattr(model, "loss", None)
    if loss is None or type(model).train_step is not keras.Model.train_step:
        return {}
    outputs = list(getattr(model, "outputs", None) or [])
    names = list(getattr(model, "output_names", None) or [])
    if len(outputs) <= 1:
        if isinstance(loss, dict | list | tuple) and len(loss) != 1:
            return {}
        one = _only(loss)
        rules = _rules(one, outputs[0] if outputs else None)
        return {} if rules is None else dict.fromkeys(("", "0", *names), rules)
    found: dict[str, LabelRules] = {}
    for number, (name, output) in enumerate(zip(names, outputs, strict=False)):
        rules = _rules(_for_output(loss, number, name), output)
        if rules is not None:
            found |= {str(number): rules, name: rules}
    return found


def _only(loss: Any) -> Any:
    if isinstance(loss, dict):
        return next(iter(loss.values()))
    return loss[0] if isinstance(loss, list | tuple) else loss


def _for_output(loss: Any, number: int, name: str) -> Any:
    if isinstance(loss, dict):
        return loss.get(name)
    if isinstance(loss, list | tuple):
        return loss[number] if number < len(loss) else None
    return loss


def _rules(loss: Any, output: Any) -> LabelRules | None:
    """Return what one loss accepts as labels of one output, which may be unknown."""
    given = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    name = type(loss).__name__ if isinstance(loss, keras.losses.Loss) else str(given)
    plain = name.replace("_", "").lower()
    if plain == "sparsecategoricalcrossentropy":
        shape = tuple(getattr(output, "shape", ()))
        count = shape[-1] if len(shape) == 2 and isinstance(shape[-1], int) else None
        return LabelRules(name, classes=True, count=count, ignore=getattr(loss, "ignore_class", None))
    if plain == "binarycrossentropy":
        return LabelRules(name, probabilities=True)
    return None


def class_error(error: Exception, largest: Mapping[str, LargestClass]) -> Exception:
    """Return what to raise for an error of a step: one about a class that the model lacks names its row."""
    found = _OUT_OF_RANGE.search(str(error))
    if found is None:
        return error
    value, count = int(found.group(1)), int(found.group(2))
    row = next((f" in row {known.row}" for known in largest.values() if known.value == value), "")
    return DataError(
        f"y of the data has the class {value}{row}; the model has {count} classes, 0 to {count - 1}. Check the labels, "
        "or give the model's last layer more outputs."
    )


def takes_text(model: Any) -> bool:
    """Whether some input of a model may be text; without declared inputs only the model knows."""
    inputs = getattr(model, "inputs", None) or []
    return not inputs or any(str(value.dtype) == "string" for value in inputs)


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
