"""Preprocessing of features and labels: columns of numbers become tensors of the sizes that a model takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orca.core.arguments import check_count, shown, wrong
from orca.errors import ArgumentError, DataError


class Preprocessing:
    """Changes the form of rows. It is applied to all rows of a batch at once, on the rank, before the model."""

    def apply(self, rows: Any, name: str = "features") -> Any:
        """Return the rows, an array or a tensor, in another form.

        Args:
            rows: The rows; the first axis counts them.
            name: What they are called in messages.
        """
        return rows

    def __call__(self, rows: Any) -> Any:
        """Return the rows in another form."""
        return self.apply(rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


class SeqToTensor(Preprocessing):
    """Gives each row a size.

    >>> import numpy as np
    >>> SeqToTensor([2, 3]).apply(np.zeros([5, 6])).shape
    (5, 2, 3)

    Args:
        size: The size of one row; empty to keep its form.
    """

    def __init__(self, size: Sequence[int] = (), bigdl_type: str = "float") -> None:
        self.size = _size("size", size)

    def apply(self, rows: Any, name: str = "features") -> Any:
        if not self.size:
            return rows
        _check_count(rows, math.prod(self.size), name, self)
        return rows.reshape((len(rows), *self.size))


class ArrayToTensor(SeqToTensor):
    """The same for arrays."""


class MLlibVectorToTensor(SeqToTensor):
    """The same for vectors of pyspark.ml."""


class ScalarToTensor(Preprocessing):
    """Takes one number per row."""

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def apply(self, rows: Any, name: str = "features") -> Any:
        _check_count(rows, 1, name, self)
        return rows.reshape((len(rows),))


class SeqToMultipleTensors(Preprocessing):
    """Splits each row into several tensors, for a model with several inputs.

    Args:
        size: The sizes of the tensors.
    """

    def __init__(self, size: Sequence[Sequence[int]], bigdl_type: str = "float") -> None:
        if not isinstance(size, list | tuple) or not size:
            raise wrong("size", size, "a list of sizes, such as [[2], [3, 4]]")
        self.size = [_size("size", part) for part in size]

    def apply(self, rows: Any, name: str = "features") -> Any:
        lengths = [math.prod(part) for part in self.size]
        _check_count(rows, sum(lengths), name, self)
        flat = rows.reshape((len(rows), sum(lengths)))
        parts, start = [], 0
        for part, length in zip(self.size, lengths, strict=True):
            parts.append(flat[:, start : start + length].reshape((len(rows), *part)))
            start += length
        return parts


class ChainedPreprocessing(Preprocessing):
    """Applies several, one after another.

    Args:
        transformers: The parts.
    """

    def __init__(self, transformers: Sequence[Preprocessing], bigdl_type: str = "float") -> None:
        if not isinstance(transformers, list | tuple):
            raise wrong("transformers", transformers, "a list of Preprocessing")
        self.transformers = [_checked("transformers", part) for part in transformers]

    def apply(self, rows: Any, name: str = "features") -> Any:
        for part in self.transformers:
            rows = part.apply(rows, name)
        return rows


class FeatureLabelPreprocessing(Preprocessing):
    """A preprocessing for features and one for labels.

    Args:
        feature_transformer: The preprocessing of features.
        label_transformer: The preprocessing of labels.
    """

    def __init__(self, feature_transformer: Any, label_transformer: Any, bigdl_type: str = "float") -> None:
        self.feature_transformer = as_preprocessing("feature_transformer", feature_transformer)
        self.label_transformer = as_preprocessing("label_transformer", label_transformer)


def as_preprocessing(name: str, value: Any) -> Preprocessing | None:
    """Read a preprocessing argument: a Preprocessing, the size of a row, a list of sizes, or None.

    >>> as_preprocessing("feature_preprocessing", [28, 28])
    SeqToTensor(size=(28, 28))
    """
    if value is None or isinstance(value, Preprocessing):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(part, list | tuple) for part in value):
        return SeqToMultipleTensors([_size(name, part) for part in value])
    if isinstance(value, list | tuple):
        return SeqToTensor(_size(name, value))
    raise wrong(name, value, "a Preprocessing, the size of a row such as [28, 28], or None")


def _checked(name: str, value: Any) -> Preprocessing:
    if not isinstance(value, Preprocessing):
        raise ArgumentError(f"{name} has {shown(value)}; expected a Preprocessing.")
    return value


def _size(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise wrong(name, value, "the size of a row, such as [28, 28]")
    return tuple(check_count(name, part) for part in value)


def _check_count(rows: Any, count: int, name: str, part: Preprocessing) -> None:
    if not hasattr(rows, "shape"):
        raise DataError(f"{part!r} takes one array of {name}, and received {len(rows)} of them.")
    found = math.prod(rows.shape[1:])
    if found != count:
        raise DataError(f"{part!r} needs {count} numbers in each row of {name}; the rows have {found}.")


def to_plain(part: Preprocessing | None) -> Any:
    """Return a preprocessing as values for JSON.

    >>> from_plain(to_plain(ChainedPreprocessing([SeqToTensor([2])])))
    ChainedPreprocessing(transformers=[SeqToTensor(size=(2,))])
    """
    if part is None:
        return None
    if type(part).__name__ not in _KINDS:
        raise ArgumentError(f"{part!r} cannot be saved: use the preprocessing classes of orca.bigdl.nnframes.")
    return {"class": type(part).__name__, **{name: _values(value) for name, value in vars(part).items()}}


def from_plain(plain: Any) -> Any:
    """Reverse `to_plain`.

    Raises:
        ValueError: If this is anything else.
    """
    if plain is None:
        return None
    if not isinstance(plain, dict) or plain.get("class") not in _KINDS:
        raise ValueError(f"{shown(plain)} is no preprocessing")
    arguments = {name: value for name, value in plain.items() if name != "class"}
    if "transformers" in arguments:
        arguments["transformers"] = [from_plain(part) for part in arguments["transformers"]]
    return _KINDS[plain["class"]](**arguments)


def _values(value: Any) -> Any:
    if isinstance(value, Preprocessing):
        return to_plain(value)
    return [_values(part) for part in value] if isinstance(value, list | tuple) else value


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        SeqToTensor, ArrayToTensor, MLlibVectorToTensor, ScalarToTensor, SeqToMultipleTensors, ChainedPreprocessing,
    )
}  # fmt: skip
