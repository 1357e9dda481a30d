"""JTensor and Sample: the values in which BigDL programs hold tensors and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from orca.core.arguments import shown
from orca.errors import ArgumentError, DataError

Array = npt.NDArray[Any]


class JTensor:
    """A tensor as its values and its shape; with indices, a sparse one.

    >>> JTensor.from_ndarray(np.ones([2, 3])).shape
    array([2, 3], dtype=int32)
    """

    def __init__(self, storage: Any, shape: Any, bigdl_type: str = "float", indices: Any = None) -> None:
        self.storage = np.asarray(storage, dtype=np.float64 if bigdl_type == "double" else np.float32).reshape(-1)
        self.shape = np.asarray(shape, dtype=np.int32).reshape(-1)
        self.bigdl_type = bigdl_type
        self.indices = None if indices is None else np.asarray(indices, dtype=np.int64)
        if indices is None and self.storage.size != int(np.prod(self.shape)):
            raise ArgumentError(
                f"JTensor received {self.storage.size} values for the shape {tuple(self.shape)}; expected "
                f"{int(np.prod(self.shape))} values."
            )

    @classmethod
    def from_ndarray(cls, a_ndarray: Any, bigdl_type: str = "float") -> Any:
        """Return a tensor with the values of an array; None stays None.

        Args:
            a_ndarray: An array of numbers.
            bigdl_type: "float", or "double" to keep float64.
        """
        if a_ndarray is None:
            return None
        if isinstance(a_ndarray, JTensor):
            return a_ndarray
        try:
            array = np.asarray(a_ndarray)
            if array.dtype.kind not in "fiub":
                raise TypeError
        except (TypeError, ValueError):
            raise ArgumentError(f"a_ndarray={shown(a_ndarray)}: expected an array of numbers.") from None
        return cls(array, array.shape if array.shape else (1,), bigdl_type)

    @classmethod
    def sparse(cls, a_ndarray: Any, i_ndarray: Any, shape: Any, bigdl_type: str = "float") -> JTensor:
        """Return a sparse tensor.

        Args:
            a_ndarray: The values that are not 0.
            i_ndarray: Their indices, from 0: one row per dimension, one column per value.
            shape: The shape of the tensor.
        """
        indices = np.asarray(i_ndarray, dtype=np.int64)
        if indices.size != np.size(a_ndarray) * np.size(shape):
            raise ArgumentError(
                f"JTensor.sparse received {np.size(a_ndarray)} values and {indices.size} indices for "
                f"{np.size(shape)} dimensions; expected one index per value and dimension."
            )
        return cls(a_ndarray, shape, bigdl_type, indices.reshape(np.size(shape), -1))

    def to_ndarray(self) -> Array:
        """Return the values as an array; those of a sparse tensor with zeros in between."""
        if self.indices is None:
            return self.storage.reshape(tuple(self.shape))
        dense = np.zeros(tuple(self.shape), dtype=self.storage.dtype)
        dense[tuple(self.indices)] = self.storage
        return dense

    def __repr__(self) -> str:
        return f"JTensor: storage: {self.storage}, shape: {self.shape}, {self.bigdl_type}"


class Sample:
    """One row: its features and its labels, each a list of tensors.

    >>> row = Sample.from_ndarray(np.ones([2]), np.array([1.0]))
    >>> row.feature.to_ndarray()
    array([1., 1.], dtype=float32)
    """

    def __init__(self, features: list[JTensor], labels: list[JTensor], bigdl_type: str = "float") -> None:
        if not features:
            raise DataError("A Sample needs at least one feature; received none.")
        self.features, self.labels = list(features), list(labels)
        self.feature = self.features[0]
        self.label = self.labels[0] if self.labels else None
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Return a row from arrays or numbers.

        Args:
            features: The array of the feature, or a list of arrays.
            labels: The array or number of the label, or a list of these.
        """
        return cls.from_jtensor(_tensors("features", features, bigdl_type), _tensors("labels", labels, bigdl_type))

    @classmethod
    def from_jtensor(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Return a row from one tensor or a list of tensors on each side."""
        lists = [value if isinstance(value, list) else [value] for value in (features, labels)]
        for name, tensors in zip(("features", "labels"), lists, strict=True):
            for tensor in tensors:
                if not isinstance(tensor, JTensor):
                    raise ArgumentError(f"{name}={shown(tensor)}: expected a JTensor or a list of them.")
        return cls(lists[0], lists[1], bigdl_type)

    def __repr__(self) -> str:
        return f"Sample: features: {self.features}, labels: {self.labels}"


def _tensors(name: str, value: Any, bigdl_type: str) -> list[JTensor]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ArgumentError(f"{name}=[]: expected an array or a list of arrays.")
    try:
        return [JTensor.from_ndarray(np.asarray(item), bigdl_type) for item in values]
    except ArgumentError:
        raise ArgumentError(f"{name}={shown(value)}: expected an array of numbers, or a list of arrays.") from None
