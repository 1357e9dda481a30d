"""Checks of values before they reach a model: what would be changed or refused later is refused with row and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from orca.errors import DataError

Array = np.ndarray[Any, Any]

INDEX_TEXT = (
    "Turn it into numbers with a StringIndexer (orca.shards.transformers), or leave it out of the features and labels."
)
_KINDS = {"U": "text", "S": "bytes", "T": "text", "M": "points in time", "m": "durations", "V": "records"}
_ADVICE = {
    "M": "Turn them into numbers, for example seconds since some day.",
    "m": "Turn them into numbers, for example with / np.timedelta64(1, 's').",
    "V": "Choose its fields as arrays of their own.",
}


def first_where(wrong: Array, first_row: int = 0) -> tuple[int, tuple[Any, ...]]:
    """Return the row of the first True value, and its index in the array."""
    index = np.unravel_index(int(np.argmax(wrong)), wrong.shape or (1,))
    return first_row + int(index[0]), index


def check_array(array: Array, name: str, other_kinds: str = "", first_row: int = 0) -> None:
    """Raise unless an array holds numbers that a model can take as they are.

    `other_kinds` are kinds of numpy dtypes that this model takes besides numbers, such as "U" for text.
    """
    dtype = array.dtype
    if dtype.kind in other_kinds or (dtype.kind in "bif" and dtype.itemsize <= 8):
        return
    if dtype.kind == "u":
        check_unsigned(array, name, first_row)
        return
    if dtype.kind == "f":
        raise DataError(f"{name} has dtype {dtype}, which no model takes. Convert it with .astype('float64').")
    if dtype.kind == "c":
        raise DataError(
            f"Complex data not supported: {name} has dtype {dtype}{_sample(array, first_row)}. Give the real and the "
            "imaginary parts as features of their own."
        )
    what = _KINDS.get(dtype.kind, f"dtype {dtype}")
    raise DataError(
        f"{name} has {what} (dtype {dtype}{_sample(array, first_row)}); a model takes numbers. "
        + _ADVICE.get(dtype.kind, INDEX_TEXT)
    )


def check_unsigned(array: Array, name: str, first_row: int = 0) -> None:
    """Raise if unsigned integers are above 2^63 - 1: they would become negative."""
    limit = np.iinfo(np.int64).max
    if array.dtype.itemsize < 8 or not array.size or int(array.max()) <= limit:
        return
    row, index = first_where(array > np.uint64(limit), first_row)
    raise DataError(
        f"{name} has {array[index]} in row {row}, which is above 2^63 - 1, the largest integer of a model. Convert it "
        "with .astype('float64'), or renumber it from 0."
    )


def check_range(array: Array, dtype: str, name: str, first_row: int = 0) -> None:
    """Raise if a type cannot hold the values of an array: integers wrap, fractions are cut off, floats overflow."""
    if dtype == "string" or not array.size or array.dtype.kind not in "iuf":
        return
    target = np.dtype(dtype)
    if target.kind in "iu":
        _check_integers(array, target, name, first_row)
    elif target.kind == "f" and array.dtype.kind == "f" and target.itemsize < array.dtype.itemsize:
        wrong = np.isfinite(array) & (np.abs(array) > np.finfo(target).max)
        if wrong.any():
            row, index = first_where(wrong, first_row)
            raise DataError(f"{name} has {array[index]} in row {row}, which {target} cannot hold. Scale the values.")


def _check_integers(array: Array, target: np.dtype[Any], name: str, first_row: int) -> None:
    limits = np.iinfo(target)
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            fraction = ~np.isfinite(array) | (array != np.floor(array))
        if fraction.any():
            row, index = first_where(fraction, first_row)
            raise DataError(
                f"{name} has {array[index]} in row {row}, but the model takes {target}. Round the values, or give the "
                "input a floating point type."
            )
    elif np.can_cast(array.dtype, target):
        return
    if array.min() >= limits.min and array.max() <= limits.max:
        return
    row, index = first_where((array < limits.min) | (array > limits.max), first_row)
    raise DataError(
        f"{name} has {array[index]} in row {row}, which is outside of {target} ({limits.min} to {limits.max}), the "
        "type of the model's input. Give that input the type int64, or renumber the values."
    )


def _sample(array: Array, first_row: int) -> str:
    if not array.size:
        return ""
    return f", such as {short(array.reshape(-1)[0])} in row {first_row}"


def short(value: object) -> str:
    """Return a value for a message, shortened.

    >>> short("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    text = repr(value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufUS" else value)
    return text if len(text) <= 40 else text[:36] + "..."


def check_unmasked(array: Array, name: str) -> Array:
    """Return a masked array as a plain one if nothing in it is masked; else raise."""
    mask: Array = np.ma.getmaskarray(array)
    masked = int(mask.sum())
    if masked:
        row, _ = first_where(mask)
        raise DataError(
            f"{name} is a masked array with {masked} of {array.size} values masked, the first in row {row}. Models "
            "have no masks: choose a value for them with .filled(...), such as .filled(np.nan), or drop these rows."
        )
    return np.asarray(array)


def check_weights(weights: Any, first_row: int = 0, name: str = "sample_weight=") -> None:
    """Raise unless the weights are one finite number of at least 0 per row."""
    if weights is None:
        return
    weights = np.asarray(weights)
    if not weights.ndim:
        raise DataError(f"{name} is {short(weights[()])}; expected one number per row.")
    if weights.size != len(weights):
        raise DataError(f"{name} has shape {weights.shape}; expected one number per row.")
    if not weights.size:
        return
    if weights.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {weights.dtype}{_sample(weights, first_row)}; expected one number per row.")
    good = (weights >= 0) & np.isfinite(weights)
    if not good.all():
        row, index = first_where(~good, first_row)
        raise DataError(f"{name} has {weights[index]} in row {row}; weights are finite numbers of at least 0.")


def check_any_weight(weights: Any) -> None:
    """Raise if all rows have weight zero."""
    if weights is not None and len(weights) and not np.any(weights):
        raise DataError("sample_weight= is zero for every row, so there is nothing to learn from.")


class LargestClass(NamedTuple):
    """The largest class among some labels, and its row."""

    value: int
    row: int
    lowest: int = 0
    """The number of the first class."""

    def check(self, count: int, name: str = "y of the data") -> None:
        """Raise if a model with this many classes does not have this one."""
        if self.value >= count + self.lowest:
            raise _no_such_class(name, self.value, self.row, count, self.lowest)


@dataclass(frozen=True)
class LabelRules:
    """What a loss accepts as labels."""

    loss: str
    """Its name, for messages."""
    classes: bool = False
    """Whether labels are class numbers."""
    count: int | None = None
    """How many classes the model has, as far as that is known; holds for labels with one class per row."""
    ignore: int | None = None
    """The class number that the loss leaves out."""
    lowest: int = 0
    """The number of the first class."""
    probabilities: bool = False
    """Whether labels are expected to be from 0 to 1."""
    strict: bool = False
    """Whether labels that are no probabilities are an error, and not only a warning."""

    def check(self, labels: Array, name: str, first_row: int = 0) -> None:
        """Raise, or warn, if the loss has another idea of labels than these."""
        if not labels.size or labels.dtype.kind not in "biuf":
            return
        if self.classes:
            self._check_classes(labels, name, first_row)
        elif self.probabilities and self.strict:
            outside = self._outside(labels, name, first_row)
            if outside:
                raise DataError(f"{outside} Scale them, or use a loss for regression.")

    def warning(self, labels: Array, name: str, first_row: int = 0) -> str:
        """Return what is doubtful about labels that the loss accepts, or an empty string."""
        if not self.probabilities or self.strict or not labels.size or labels.dtype.kind not in "biuf":
            return ""
        return self._outside(labels, name, first_row)

    def largest(self, labels: Array, first_row: int = 0) -> LargestClass | None:
        """Return the largest class, if it is a question of the model's output whether there is such a class."""
        single = labels.size and labels.size == len(labels)
        if not self.classes or self.count is not None or not single or labels.dtype.kind not in "biuf":
            return None
        row, index = first_where(labels == labels.max(), first_row)
        value = int(labels[index])
        return None if value == self.ignore else LargestClass(value, row, self.lowest)

    def _check_classes(self, labels: Array, name: str, first_row: int) -> None:
        single = labels.size == len(labels)
        if labels.dtype.kind == "f":
            if not single and not self.lowest:
                return  # probabilities of all classes
            with np.errstate(invalid="ignore"):
                whole = (labels == np.floor(labels)) & np.isfinite(labels)
            if not whole.all():
                row, index = first_where(~whole, first_row)
                raise DataError(
                    f"{name} has {labels[index]} in row {row}; {self.loss} expects class numbers, which are whole. "
                    "Round them, or use a loss for regression."
                )
        lowest = self.lowest
        if labels.min() < lowest:
            wrong = (labels < lowest) if self.ignore is None else (labels < lowest) & (labels != self.ignore)
            if wrong.any():
                row, index = first_where(wrong, first_row)
                raise self._too_small(name, int(labels[index]), row)
        if self.count is not None and single and labels.max() >= self.count + lowest:
            wrong = labels >= self.count + lowest
            if self.ignore is not None:
                wrong &= labels != self.ignore
            if wrong.any():
                row, index = first_where(wrong, first_row)
                from_one = not lowest and bool(labels.min() == 1)
                raise _no_such_class(name, int(labels[index]), row, self.count, lowest, from_one)

    def _too_small(self, name: str, value: int, row: int) -> DataError:
        ignored = f", or {self.ignore} for a row to ignore" if self.ignore is not None else ""
        if not self.lowest:
            expected = f"{self.loss} expects class numbers from 0 on{ignored}."
        else:
            last = "on" if self.count is None else f"to {self.count + self.lowest - 1}"
            expected = f"labels of {self.loss} count from {self.lowest}; expected {self.lowest} {last}{ignored}."
        return DataError(f"{name} has the class {value} in row {row}; {expected}")

    def _outside(self, labels: Array, name: str, first_row: int) -> str:
        low, high = labels.min(), labels.max()
        if not (low < 0 or high > 1):
            return ""
        row, index = first_where((labels < 0) | (labels > 1), first_row)
        return f"{name} has the label {labels[index]} in row {row}; {self.loss} expects labels from 0 to 1."


def _no_such_class(name: str, value: int, row: int, count: int, lowest: int = 0, from_one: bool = False) -> DataError:
    if lowest:
        return DataError(
            f"{name} has the class {value} in row {row}; labels count from {lowest}; expected {lowest} to "
            f"{count + lowest - 1}. Check the labels, or give the model's last layer more outputs."
        )
    classes = f"{count} classes, 0 to {count - 1}" if count != 1 else "1 class, 0"
    advice = "Check the labels, or give the model's last layer more outputs."
    if from_one and value == count:
        advice = "The labels seem to count from 1: subtract 1."
    return DataError(f"{name} has the class {value} in row {row}; the model has {classes}. {advice}")


Rules = Mapping[str, LabelRules]
"""Rules by the dotted name of the labels they are for; one array has the name ""."""
