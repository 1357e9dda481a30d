"""Layers that take tables apart and build them."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl.activations import Elementwise
from orca.backends.bigdl.dimensions import axis
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.table_layers import pair, several
from orca.backends.bigdl.tables import leaves
from orca.errors import ArgumentError, DataError


class JoinTable(Layer):
    """Concatenates the tensors of a table.

    Args:
        dimension: The dimension, counted from 1.
        n_input_dims: The number of dimensions without the batch.
    """

    def __init__(self, dimension: int, n_input_dims: int = -1, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.dims = dimension, n_input_dims

    def compute(self, x: Any) -> torch.Tensor:
        tensors = several(self, x)
        place = axis(self, self.dim, tensors[0].ndim, self.dims)
        shapes = [[size for i, size in enumerate(tensor.shape) if i != place] for tensor in tensors]
        if any(shape != shapes[0] for shape in shapes):
            raise DataError(
                f"{self!r} cannot join {[tuple(tensor.shape) for tensor in tensors]}: only dimension {place + 1} may "
                "differ."
            )
        return torch.cat(tensors, dim=place)


class SplitTable(Layer):
    """Splits a tensor along a dimension into a table.

    Args:
        dimension: The dimension, counted from 1.
        n_input_dims: The number of dimensions without the batch.
    """

    def __init__(self, dimension: int, n_input_dims: int = -1, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.dims = dimension, n_input_dims

    def compute(self, x: Any) -> list[torch.Tensor]:
        return list(x.unbind(axis(self, self.dim, x.ndim, self.dims)))


class BifurcateSplitTable(Layer):
    """Splits a tensor into two halves; the second is larger if the size is odd.

    Args:
        dimension: The dimension, counted from 1.
    """

    def __init__(self, dimension: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dimension

    def compute(self, x: Any) -> list[torch.Tensor]:
        place = axis(self, self.dim, x.ndim)
        left = x.shape[place] // 2
        return [x.narrow(place, 0, left), x.narrow(place, left, x.shape[place] - left)]


class SelectTable(Layer):
    """Takes one element of a table.

    Args:
        index: The index, counted from 1; negative from the end.
    """

    def __init__(self, index: int, bigdl_type: str = "float") -> None:
        super().__init__()
        if index == 0:
            raise ArgumentError("index=0: indices of a table count from 1.")
        self.index = index

    def compute(self, x: Any) -> Any:
        elements = several(self, x)
        place = self.index - 1 if self.index > 0 else self.index
        if not -len(elements) <= place < len(elements):
            raise DataError(f"{self!r} selects element {self.index} of a table of {len(elements)}.")
        return elements[place]


class NarrowTable(Layer):
    """Takes a range of a table.

    Args:
        offset: The first index, counted from 1.
        length: The number of elements; -1 for all that follow, -2 for all but the last, and so on.
    """

    def __init__(self, offset: int, length: int = 1, bigdl_type: str = "float") -> None:
        super().__init__()
        self.offset, self.length = offset, length

    def compute(self, x: Any) -> list[Any]:
        elements = several(self, x)
        length = self.length if self.length >= 0 else len(elements) - self.offset + 2 + self.length
        if self.offset < 1 or length < 1 or self.offset - 1 + length > len(elements):
            raise DataError(f"{self!r} takes {length} elements from {self.offset} of a table of {len(elements)}.")
        return elements[self.offset - 1 : self.offset - 1 + length]


class FlattenTable(Elementwise):
    """Flattens nested tables into one."""

    def compute(self, x: Any) -> list[Any]:
        return leaves(x)


class Pack(Layer):
    """Stacks the tensors of a table along a new dimension.

    Args:
        dimension: Its position, counted from 1; negative from the end.
    """

    def __init__(self, dimension: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dimension

    def compute(self, x: Any) -> torch.Tensor:
        tensors = list(x) if isinstance(x, list | tuple) else [x]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if len(set(shapes)) > 1:
            raise DataError(f"{self!r} cannot stack tensors of the shapes {shapes}.")
        return torch.stack(tensors, dim=axis(self, self.dim, tensors[0].ndim + 1))


class Index(Layer):
    """Takes the indices of a dimension that the second tensor of a table lists, counted from 1.

    Args:
        dimension: The dimension, counted from 1.
    """

    def __init__(self, dimension: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dimension

    def compute(self, x: Any) -> torch.Tensor:
        source, indices = pair(self, x)
        place = axis(self, self.dim, source.ndim)
        rows = indices.detach().to(torch.int64).reshape(-1) - 1
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= source.shape[place]):
            raise DataError(f"{self!r} received indices outside of 1 to {source.shape[place]}.")
        return source.index_select(place, rows)


class MaskedSelect(Elementwise):
    """Takes the values at which the second tensor of a table is not 0."""

    def compute(self, x: Any) -> torch.Tensor:
        source, mask = pair(self, x)
        return source.masked_select(mask != 0)


class TableOperation(Layer):
    """Expands the smaller of two tensors to the size of the larger one, then applies a layer to both.

    Args:
        operation_layer: The layer, such as `CMulTable()`. It receives the larger tensor first.
    """

    def __init__(self, operation_layer: Layer, bigdl_type: str = "float") -> None:
        super().__init__()
        self.operation: Layer = self.attach("operation", operation_layer)

    def compute(self, x: Any) -> Any:
        first, second = pair(self, x)
        large, small = (first, second) if first.numel() > second.numel() else (second, first)
        try:
            return self.operation.module([large, small.expand_as(large)])
        except RuntimeError:
            raise DataError(f"{self!r} cannot expand {tuple(small.shape)} to {tuple(large.shape)}.") from None
