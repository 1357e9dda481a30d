"""Layers that rearrange the values of a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

from orca.backends.bigdl.dimensions import INTMAX, INTMIN, axis
from orca.backends.bigdl.layer import Layer
from orca.core.arguments import check_count, check_flag, check_number, shown
from orca.errors import ArgumentError, DataError


def integers(name: str, value: Any) -> list[int]:
    """Return a list of integers that a user wrote as a list, a tuple or one integer."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or any(isinstance(item, bool) or not isinstance(item, int) for item in values):
        raise ArgumentError(f"{name}={shown(value)}: expected a list of integers.")
    return values


class Reshape(Layer):
    """Gives rows another shape.

    Args:
        size: The shape.
        batch_mode: Whether the first dimension is the batch; by default it is if the number of values does not match
            or if its size is 1.
    """

    def __init__(self, size: Any, batch_mode: bool | None = None, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size = integers("size", size)
        self.batch = None if batch_mode is None else check_flag("batch_mode", batch_mode)

    def compute(self, x: Any) -> torch.Tensor:
        count = math.prod(self.size)
        whole = self.batch is False or (self.batch is None and x.numel() == count and x.shape[0] != 1)
        shape = self.size if whole else [x.shape[0], *self.size]
        if x.numel() != math.prod(shape):
            raise DataError(
                f"{self!r} cannot reshape {tuple(x.shape)} to {tuple(shape)}: the numbers of values differ."
            )
        return x.reshape(shape)


class View(Layer):
    """Gives rows another shape; one size may be -1.

    Args:
        sizes: The shape.
        num_input_dims: The number of dimensions without the batch; 0 to derive it from the number of values.
    """

    def __init__(self, sizes: Any, num_input_dims: int = 0, bigdl_type: str = "float") -> None:
        super().__init__()
        self.sizes, self.dims = integers("sizes", sizes), num_input_dims
        if any(size < -1 for size in self.sizes) or self.sizes.count(-1) > 1:
            raise ArgumentError(f"sizes={shown(sizes)}: expected positive sizes, at most one -1.")

    def compute(self, x: Any) -> torch.Tensor:
        count = math.prod(size for size in self.sizes if size >= 0)
        inner = self.dims or x.ndim
        values = math.prod(x.shape[x.ndim - inner :])
        if values % count:
            raise DataError(f"{self!r} cannot view {tuple(x.shape)} as {tuple(self.sizes)}.")
        rows = (1 if -1 in self.sizes else values // count) * math.prod(x.shape[: x.ndim - inner])
        alone = rows == 1 and (self.dims == 0 or x.ndim <= self.dims)
        return x.reshape(self.sizes if alone else [rows, *self.sizes])


class InferReshape(Layer):
    """Gives a tensor another shape, in which -1 is derived and 0 keeps a dimension.

    Args:
        size: The shape.
        batch_mode: Whether the first dimension is the batch.
    """

    def __init__(self, size: Any, batch_mode: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.size, self.batch = integers("size", size), check_flag("batch_mode", batch_mode)
        if self.size.count(-1) > 1:
            raise ArgumentError(f"size={shown(size)}: at most one size can be -1.")

    def compute(self, x: Any) -> torch.Tensor:
        first = 1 if self.batch else 0
        if any(size == 0 and i + first >= x.ndim for i, size in enumerate(self.size)):
            raise DataError(f"{self!r} keeps a dimension that the input {tuple(x.shape)} does not have.")
        shape = [x.shape[i + first] if size == 0 else size for i, size in enumerate(self.size)]
        return x.reshape([*x.shape[:first], *shape])


class Transpose(Layer):
    """Swaps dimensions.

    Args:
        permutations: Pairs of dimensions, counted from 1, which are swapped one after another.
    """

    def __init__(self, permutations: Any, bigdl_type: str = "float") -> None:
        super().__init__()
        self.pairs = [integers("permutations", pair) for pair in permutations]
        if any(len(pair) != 2 for pair in self.pairs):
            raise ArgumentError(f"permutations={shown(permutations)}: expected pairs of dimensions.")

    def compute(self, x: Any) -> torch.Tensor:
        for first, second in self.pairs:
            x = x.transpose(axis(self, first, x.ndim), axis(self, second, x.ndim))
        return x


class Squeeze(Layer):
    """Drops dimensions of size one.

    Args:
        dim: The dimension, counted from 1; None for all.
        num_input_dims: If it is set, the first dimension is the batch, which stays and does not count.
    """

    def __init__(self, dim: Any = None, num_input_dims: int = INTMIN, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dims = None if dim is None else integers("dim", dim)
        self.batch = num_input_dims != INTMIN

    def compute(self, x: Any) -> torch.Tensor:
        first = 1 if self.batch else 0
        if self.dims is None:
            return x.reshape([*x.shape[:first], *(size for size in x.shape[first:] if size != 1)])
        return x.squeeze([axis(self, dim + first if dim > 0 else dim, x.ndim) for dim in self.dims])


class Unsqueeze(Layer):
    """Inserts dimensions of size one.

    Args:
        pos: The position, counted from 1, or a list of them.
        num_input_dims: The number of dimensions without the batch.
    """

    def __init__(self, pos: Any, num_input_dims: int = INTMIN, bigdl_type: str = "float") -> None:
        super().__init__()
        self.places, self.dims = integers("pos", pos), num_input_dims

    def compute(self, x: Any) -> torch.Tensor:
        first = 1 if self.dims > 0 and x.ndim == self.dims + 1 else 0
        for place in self.places:
            x = x.unsqueeze(place - 1 + first if place > 0 else place)
        return x


class Select(Layer):
    """Takes one index of a dimension.

    Args:
        dim: The dimension, counted from 1.
        index: The index, counted from 1; negative from the end.
    """

    def __init__(self, dim: int, index: int, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.index = dim, index

    def compute(self, x: Any) -> torch.Tensor:
        place = axis(self, self.dim, x.ndim)
        index = self.index - 1 if self.index > 0 else x.shape[place] + self.index
        if not 0 <= index < x.shape[place] or self.index == 0:
            raise DataError(f"{self!r} selects index {self.index} of a dimension of size {x.shape[place]}.")
        return x.select(place, index)


class Narrow(Layer):
    """Takes a range of a dimension.

    Args:
        dimension: The dimension, counted from 1.
        offset: The first index, counted from 1.
        length: The number of indices; -1 for all that follow, -2 for all but the last, and so on.
    """

    def __init__(self, dimension: int, offset: int, length: int = 1, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.offset, self.length = dimension, offset, length

    def compute(self, x: Any) -> torch.Tensor:
        place = axis(self, self.dim, x.ndim)
        size = x.shape[place]
        start = self.offset if self.offset > 0 else size + self.offset + 1
        length = self.length if self.length > 0 else size - start + self.length + 2
        if start < 1 or length < 1 or start - 1 + length > size:
            raise DataError(f"{self!r} takes {length} indices from {start} of a dimension of size {size}.")
        return x.narrow(place, start - 1, length)


class Replicate(Layer):
    """Repeats the input along a new dimension.

    Args:
        n_features: How often.
        dim: The position of the new dimension, counted from 1.
        n_dim: The number of dimensions without the batch.
    """

    def __init__(self, n_features: int, dim: int = 1, n_dim: int = INTMAX, bigdl_type: str = "float") -> None:
        super().__init__()
        self.count, self.dim, self.dims = check_count("n_features", n_features), check_count("dim", dim), n_dim

    def compute(self, x: Any) -> torch.Tensor:
        place = self.dim - 1 + (1 if x.ndim > self.dims else 0)
        if place > x.ndim:
            raise DataError(f"{self!r} inserts dimension {self.dim}, but the input has {x.ndim} dimensions.")
        x = x.unsqueeze(place)
        return x.expand([self.count if i == place else size for i, size in enumerate(x.shape)])


class Padding(Layer):
    """Inserts a constant into a dimension.

    Args:
        dim: The dimension, counted from 1.
        pad: How many values; negative to insert them before.
        n_input_dim: The number of dimensions without the batch.
        value: The constant.
        n_index: The place, counted from 1 from the side at which values are inserted.
    """

    def __init__(
        self, dim: int, pad: int, n_input_dim: int, value: float = 0.0, n_index: int = 1, bigdl_type: str = "float"
    ) -> None:
        super().__init__()
        self.dim, self.pad, self.dims = dim, pad, n_input_dim
        self.value, self.index = check_number("value", value), check_count("n_index", n_index)

    def compute(self, x: Any) -> torch.Tensor:
        place = axis(self, self.dim if x.ndim == self.dims or self.dim < 0 else self.dim + 1, x.ndim)
        size = x.shape[place]
        cut = size - self.index + 1 if self.pad > 0 else self.index - 1
        if not 0 <= cut <= size:
            raise DataError(f"{self!r} inserts at {self.index} of a dimension of size {size}.")
        shape = list(x.shape)
        shape[place] = abs(self.pad)
        return torch.cat(
            [x.narrow(place, 0, cut), x.new_full(shape, self.value), x.narrow(place, cut, size - cut)], dim=place
        )


class Reverse(Layer):
    """Reverses the order along a dimension.

    Args:
        dimension: The dimension, counted from 1.
        is_inplace: Accepted for compatibility.
    """

    def __init__(self, dimension: int = 1, is_inplace: bool = False, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim = dimension

    def compute(self, x: Any) -> torch.Tensor:
        return x.flip(axis(self, self.dim, x.ndim))


class Tile(Layer):
    """Repeats the input along a dimension.

    Args:
        dim: The dimension, counted from 1.
        copies: How often.
    """

    def __init__(self, dim: int = 1, copies: int = 2, bigdl_type: str = "float") -> None:
        super().__init__()
        self.dim, self.copies = dim, check_count("copies", copies)

    def compute(self, x: Any) -> torch.Tensor:
        place = axis(self, self.dim, x.ndim)
        return x.repeat([self.copies if i == place else 1 for i in range(x.ndim)])


class ExpandSize(Layer):
    """Repeats the input along its dimensions of one.

    Args:
        sizes: The shape; -1 keeps a dimension.
    """

    def __init__(self, sizes: Any, bigdl_type: str = "float") -> None:
        super().__init__()
        self.sizes = integers("sizes", sizes)

    def compute(self, x: Any) -> torch.Tensor:
        try:
            return x.expand(self.sizes)
        except RuntimeError:
            raise DataError(f"{self!r} cannot expand {tuple(x.shape)} to {tuple(self.sizes)}.") from None


class Masking(Layer):
    """Sets time steps to 0 in which all values equal a number.

    Args:
        mask_value: The number.
    """

    def __init__(self, mask_value: float, bigdl_type: str = "float") -> None:
        super().__init__()
        self.value = check_number("mask_value", mask_value)

    def compute(self, x: Any) -> torch.Tensor:
        kept = (x != self.value).reshape(*x.shape[:2], -1).any(dim=2)
        return x * kept.to(x.dtype).reshape(*x.shape[:2], *[1] * (x.ndim - 2))
