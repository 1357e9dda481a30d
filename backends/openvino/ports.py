"""A model's inputs and outputs, and how rows of data fit them; knows shapes only."""

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
    """One input or output: its names, numpy dtype and shape, where None is any length."""

    name: str
    names: frozenset[str]
    dtype: str
    shape: tuple[int | None, ...]
    named: bool = True
    """Whether the model itself names it."""
    order: tuple[int, ...] | None = None
    """How to transpose rows of data into this input's layout."""

    @property
    def given(self) -> tuple[int | None, ...]:
        """The shape in the layout of the data."""
        if self.order is None:
            return self.shape
        return tuple(self.shape[self.order.index(axis)] for axis in range(len(self.shape)))

    def __str__(self) -> str:
        return f"{self.name!r} {shown(self.shape)}"


def shown(shape: Sequence[int | None]) -> str:
    """A shape as people write it.

    >>> shown((None, 3, 8))
    '[?, 3, 8]'
    """
    return f"[{', '.join('?' if side is None else str(side) for side in shape)}]"


def take_inputs(features: Any, ports: Sequence[Port]) -> list[Any]:
    """The arrays for the inputs, in the model's order: by name from a dict, by position from a list."""
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
            f"The model has {len(ports)} inputs ({', '.join(map(str, ports))}); received one array. Give a list in "
            "this order, or a dict by these names."
        )
    return [features]


def _by_name(features: dict[str, Any], ports: Sequence[Port]) -> list[Any]:
    found = []
    for port in ports:
        names = [name for name in (port.name, *sorted(port.names)) if name in features]
        if names:
            found.append(features[names[0]])
        elif len(ports) == 1 and "image" in features:
            found.append(features["image"])  # as read_images calls it
        elif len(ports) == 1 and len(features) == 1:
            found.append(next(iter(features.values())))
        else:
            known = ", ".join(map(repr, features))
            raise DataError(
                f"The input {port} is not in the data, which has {known}." + suggest(port.name, map(str, features))
            )
    return found


@dataclass(frozen=True)
class Fit:
    """How rows become what an input takes: each entry a whole request, or several rows; reshaped, then transposed."""

    nested: bool = False
    stacked: bool = False
    """Whether each entry holds several rows that need not be one request."""
    order: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    def __call__(self, rows: Array, dtype: str) -> Array:
        """The rows in the input's form and dtype; the same memory where nothing has to change."""
        if self.shape is not None:
            rows = rows.reshape(len(rows), *self.shape)
        if self.order is not None:
            rows = rows.transpose(self.order)
        return np.ascontiguousarray(rows, dtype)


def fit_to(port: Port, shape: Sequence[int], dtype: Any) -> Fit:
    """Find out how an array of rows fits an input, or say how it does not."""
    kind = np.dtype(dtype).kind
    if kind not in _FLAT_KINDS:
        raise DataError(f"The input {port} takes numbers ({port.dtype}); received {np.dtype(dtype)}.")
    if np.dtype(port.dtype).kind in "biu" and kind == "f":
        raise DataError(f"The input {port} takes whole numbers ({port.dtype}); received {np.dtype(dtype)}: use astype.")
    rank, order, given = len(port.shape), port.order, port.given
    row = tuple(shape[1:])
    if len(shape) == rank + 1 and _same(given, row):
        return Fit(nested=True, order=order)
    wanted = given[1:]
    # Only entries that are whole requests can have the axis of rows elsewhere.
    if order is None or order[0] == 0:
        if len(shape) == rank and _same(wanted, row):
            return Fit(order=order)
        if len(shape) == rank + 1 and _same(wanted, row[1:]):
            return Fit(stacked=True, order=order)
        # Columns of DataFrames are often flat, or single numbers, or lack an axis of length one.
        if None not in wanted and rank > 1:
            flat = len(shape) <= 2 and math.prod(row) == math.prod(map(_side, wanted))
            if flat or [side for side in row if side != 1] == [side for side in wanted if side != 1]:
                return Fit(order=order, shape=tuple(map(_side, wanted)))
    raise DataError(f"The input {port} does not take rows of shape {shown(row)}.{_advice(port, shape)}")


def _side(side: int | None) -> int:
    assert side is not None
    return side


def _same(wanted: Sequence[int | None], given: Sequence[int]) -> bool:
    return len(wanted) == len(given) and all(w is None or w == g for w, g in zip(wanted, given, strict=True))


def _advice(port: Port, shape: Sequence[int]) -> str:
    if port.order is None and len(shape) == len(port.shape) == 4:
        high, wide, channels = shape[1:]
        for letters, row in (("NHWC", (channels, high, wide)), ("NCHW", (wide, high, channels))):
            turned = row if letters == "NHWC" else (shape[2], shape[3], shape[1])
            if _same(port.shape[1:], turned):
                return f' The data looks like {letters}: give layout="{letters}" to from_openvino.'
    if len(shape) == len(port.shape) - 1 and _same(port.given[1:], shape):
        return " This is one row: give an array of rows, data[None]."
    if port.order is not None and port.order[0] != 0:
        return " Its layout has no axis of rows in front: give whole requests, one after the other."
    return f" Expected {shown((None, *port.given[1:]))} with any number of rows."


def with_layout(ports: Sequence[Port], layout: Any, known: Sequence[str | None]) -> list[Port]:
    """The inputs for data laid out like `layout`: one text or a dict by name; `known` are the model's own layouts."""
    if layout is None:
        return list(ports)
    wanted = layout if isinstance(layout, dict) else {p.name: layout for p in ports if len(p.shape) == _letters(layout)}
    by_name = {name: port for port in ports for name in (port.name, *port.names)}
    for name in wanted:
        if name not in by_name:
            raise ArgumentError(f"layout= names {name!r}, which is no input of the model." + suggest(name, by_name))
    if not wanted:
        raise ArgumentError(f"layout={layout!r} fits no input of the model: {', '.join(map(str, ports))}.")
    orders = {by_name[name].name: text for name, text in wanted.items()}
    return [
        replace(port, order=_order(port, orders[port.name], own)) if port.name in orders else port
        for port, own in zip(ports, known, strict=True)
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
            f"layout={layout!r} does not fit the input {port}, whose layout is {model or 'not known'}. Give the data's "
            'and the model\'s layout with the same letters, such as "NHWC->NCHW".'
        )
    order = tuple(data.index(letter) for letter in model)
    return None if order == tuple(range(len(order))) else order


def guess_layout(shape: Sequence[int | None]) -> str:
    """The layout of images by their channels; nothing for other shapes.

    >>> guess_layout((None, 224, 224, 3)), guess_layout((1, 3, 224, 224)), guess_layout((None, 10))
    ('NHWC', 'NCHW', '')
    """
    if len(shape) != 4:
        return ""
    return "NHWC" if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else "NCHW"
