"""A model's inputs and outputs, and how rows of data fit their shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError, suggest
from orca.shards.tree import leaves

Array = np.ndarray[Any, Any]
_FLAT_KINDS = "biuf"


@dataclass(frozen=True)
class Port:
    """An input or output: its names, numpy dtype and shape, where None is any length."""

    name: str
    names: frozenset[str]
    dtype: str
    shape: tuple[int | None, ...]
    named: bool = True
    """Whether the name comes from the model."""
    order: tuple[int, ...] | None = None
    """The transposition of data into this input's layout."""

    @property
    def data_shape(self) -> tuple[int | None, ...]:
        """The shape in the layout of the data."""
        if self.order is None:
            return self.shape
        return tuple(self.shape[self.order.index(axis)] for axis in range(len(self.shape)))

    def __str__(self) -> str:
        return f"{self.name!r} {shown(self.shape)}"


def shown(shape: Sequence[int | None]) -> str:
    """Format a shape.

    >>> shown((None, 3, 8))
    '[?, 3, 8]'
    """
    return f"[{', '.join('?' if side is None else str(side) for side in shape)}]"


def sides(shape: Any) -> list[int]:
    """Check a shape and convert it for OpenVINO, where -1 is any length."""
    if not isinstance(shape, list | tuple) or not shape:
        raise ArgumentError(f"shape={shape!r}: expected one number per axis, with None for any length.")
    lengths = [-1 if side is None else side for side in shape]
    if any(isinstance(side, bool) or not isinstance(side, int) or side < -1 or side == 0 for side in lengths):
        raise ArgumentError(f"shape={shape!r}: expected one number per axis, with None for any length.")
    return lengths


def take_inputs(features: Any, ports: Sequence[Port]) -> list[Any]:
    """Return the arrays for the inputs in the model's order: by name from a dict, by position from a list."""
    if isinstance(features, dict):
        return _by_name(features, ports)
    if isinstance(features, list | tuple):
        arrays = [leaf for _, leaf in leaves(features)]
        if len(arrays) != len(ports):
            raise DataError(
                f"The model has {len(ports)} input{'s' if len(ports) > 1 else ''} ({', '.join(map(str, ports))}); "
                f"received {len(arrays)} arrays."
            )
        return arrays
    if len(ports) != 1:
        raise DataError(
            f"The model has {len(ports)} inputs ({', '.join(map(str, ports))}); received one array. Pass a list in "
            "this order, or a dict by these names."
        )
    return [features]


def _by_name(features: dict[str, Any], ports: Sequence[Port]) -> list[Any]:
    arrays = []
    for port in ports:
        matches = [name for name in (port.name, *sorted(port.names)) if name in features]
        if matches:
            arrays.append(features[matches[0]])
        elif len(ports) == 1 and "image" in features:
            arrays.append(features["image"])  # the column of read_images
        elif len(ports) == 1 and len(features) == 1:
            arrays.append(next(iter(features.values())))
        else:
            names = ", ".join(map(repr, features))
            raise DataError(
                f"The input {port} is not in the data, which has {names}." + suggest(port.name, map(str, features))
            )
    return arrays


@dataclass(frozen=True)
class Fit:
    """How rows become requests: each entry is a request or several rows; reshaped, then transposed."""

    nested: bool = False
    stacked: bool = False
    """Whether each entry holds several rows, not necessarily one request."""
    order: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    def __call__(self, rows: Array, dtype: str) -> Array:
        """Convert rows to the shape and dtype of the input, without a copy where possible."""
        if self.shape is not None:
            rows = rows.reshape(len(rows), *self.shape)
        if self.order is not None:
            rows = rows.transpose(self.order)
        return np.ascontiguousarray(rows, dtype)


def fit_to(port: Port, shape: Sequence[int], dtype: Any) -> Fit:
    """Determine how an array of rows fits an input; raise DataError if it does not."""
    kind = np.dtype(dtype).kind
    if kind not in _FLAT_KINDS:
        raise DataError(f"The input {port} takes numbers ({port.dtype}); received {np.dtype(dtype)}.")
    if np.dtype(port.dtype).kind in "biu" and kind == "f":
        raise DataError(f"The input {port} takes integers ({port.dtype}); received {np.dtype(dtype)}: use astype.")
    rank, order, data_shape = len(port.shape), port.order, port.data_shape
    row = tuple(shape[1:])
    if len(shape) == rank + 1 and _same(data_shape, row):
        return Fit(nested=True, order=order)
    expected = data_shape[1:]
    # Only entries that are whole requests can have the row axis in another position.
    if order is None or order[0] == 0:
        if len(shape) == rank and _same(expected, row):
            return Fit(order=order)
        if len(shape) == rank + 1 and _same(expected, row[1:]):
            return Fit(stacked=True, order=order)
        # DataFrame columns are often flat, or scalars, or lack an axis of length one.
        if None not in expected and rank > 1:
            flat = len(shape) <= 2 and math.prod(row) == math.prod(map(_side, expected))
            if flat or [side for side in row if side != 1] == [side for side in expected if side != 1]:
                return Fit(order=order, shape=tuple(map(_side, expected)))
    raise DataError(f"The input {port} does not take rows of shape {shown(row)}.{_advice(port, shape)}")


def _side(side: int | None) -> int:
    assert side is not None
    return side


def _same(expected: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(expected) == len(shape) and all(e is None or e == s for e, s in zip(expected, shape, strict=True))


def _advice(port: Port, shape: Sequence[int]) -> str:
    if port.order is None and len(shape) == len(port.shape) == 4:
        for layout, row in (("NHWC", (shape[3], *shape[1:3])), ("NCHW", (*shape[2:], shape[1]))):
            if _same(port.shape[1:], row):
                return f' The data looks like {layout}: pass layout="{layout}" to from_openvino.'
    if len(shape) == len(port.shape) - 1 and _same(port.data_shape[1:], shape):
        return " This is one row: pass an array of rows, data[None]."
    if port.order is not None and port.order[0] != 0:
        return " Its layout does not start with the row axis: pass whole requests, stacked on a new first axis."
    return f" Expected {shown((None, *port.data_shape[1:]))} with any number of rows."


def with_layout(ports: Sequence[Port], layout: Any, own_layouts: Sequence[str | None]) -> list[Port]:
    """Return the inputs for data in `layout`, a string or a dict by input name; `own_layouts` are the model's."""
    if layout is None:
        return list(ports)
    layouts = layout
    if not isinstance(layout, dict):
        layouts = {port.name: layout for port in ports if len(port.shape) == _letters(layout)}
    by_name = {name: port for port in ports for name in (port.name, *port.names)}
    for name in layouts:
        if name not in by_name:
            raise ArgumentError(f"layout= names {name!r}, which is not an input of the model." + suggest(name, by_name))
    if not layouts:
        raise ArgumentError(f"layout={layout!r} fits no input of the model: {', '.join(map(str, ports))}.")
    by_port = {by_name[name].name: text for name, text in layouts.items()}
    return [
        replace(port, order=_order(port, by_port[port.name], own)) if port.name in by_port else port
        for port, own in zip(ports, own_layouts, strict=True)
    ]


def _letters(layout: Any) -> int:
    if not isinstance(layout, str) or not layout:
        raise ArgumentError(f'layout={layout!r}: expected letters such as "NHWC", or a dict of them by input name.')
    return len(layout.partition("->")[0])


def _order(port: Port, layout: str, own: str | None) -> tuple[int, ...] | None:
    data, _, model = layout.partition("->")
    _letters(data)
    model = model or own or guess_layout(port.shape)
    if len(data) != len(port.shape) or sorted(data) != sorted(model) or len(set(data)) != len(data):
        raise ArgumentError(
            f"layout={layout!r} does not fit the input {port}, whose layout is {model or 'unknown'}. Pass the data's "
            'and the model\'s layout with the same letters, such as "NHWC->NCHW".'
        )
    order = tuple(data.index(letter) for letter in model)
    return None if order == tuple(range(len(order))) else order


def guess_layout(shape: Sequence[int | None]) -> str:
    """Guess the layout of images from their channels; "" for other shapes.

    >>> guess_layout((None, 224, 224, 3)), guess_layout((1, 3, 224, 224)), guess_layout((None, 10))
    ('NHWC', 'NCHW', '')
    """
    if len(shape) != 4:
        return ""
    return "NHWC" if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else "NCHW"
