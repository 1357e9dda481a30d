"""Finds the adapter of data: Orca's own, and those that other packages register as entry points `orca.adapters`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError
from orca.shards.adapters.base import Adapter, Form

GROUP = "orca.adapters"
_PACKAGE = "orca.shards.adapters"
_SPECIFIC = (
    "shards:ShardsAdapter",
    "frames:FrameAdapter",
    "frames:TableAdapter",
    "spark:SparkAdapter",
    "rdd:RDDAdapter",
    "ray:RayAdapter",
    "torch_data:TorchAdapter",
    "tf_data:TensorFlowAdapter",
    "mxnet_data:MXNetAdapter",
)
"""Kinds that their classes tell; tried first."""
_GENERAL = (
    "arrow_stream:ArrowStreamAdapter",
    "creator:CreatorAdapter",
    "iterables:IterableAdapter",
    "arrays:ArraysAdapter",
)
"""Kinds that many classes may have; tried after those of other packages. The last one accepts anything."""


@cache
def _own(places: tuple[str, ...]) -> tuple[type[Adapter], ...]:
    parts = (place.partition(":") for place in places)
    return tuple(getattr(import_module(f"{_PACKAGE}.{module}"), name) for module, _, name in parts)


@cache
def _others() -> tuple[type[Adapter], ...]:
    adapters = []
    for entry in entry_points(group=GROUP):
        adapter = entry.load()
        if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
            raise ArgumentError(
                f"The entry point {entry.value!r} of {GROUP} is {adapter!r}; expected a subclass of "
                "orca.shards.adapters.base.Adapter."
            )
        adapters.append(adapter)
    return tuple(adapters)


def adapt(data: Any) -> Adapter:
    """Return the adapter of data.

    >>> type(adapt(np.zeros(3))).__name__
    'ArraysAdapter'
    """
    if isinstance(data, np.ndarray | list | tuple | dict):
        return _own(_GENERAL)[-1](data)
    adapter = _first(_own(_SPECIFIC), data) or _first(_others(), data) or _first(_own(_GENERAL), data)
    assert adapter is not None, "the last adapter accepts anything"
    return adapter(data)


def _first(adapters: tuple[type[Adapter], ...], data: object) -> type[Adapter] | None:
    return next((adapter for adapter in adapters if adapter.accepts(data)), None)


def check_extras(adapter: Adapter, form: Form) -> None:
    """Raise if labels or weights stand beside data that brings its own, or columns are named where there are none."""
    kind = type(adapter.data).__name__
    check_names(adapter, form.argument, feature_cols=form.feature_cols, label_cols=form.label_cols)
    if form.labels is not None and not adapter.takes_labels:
        raise DataError(f"{form.argument}= is a {kind}: its labels are part of it, not y=.")
    if form.weights is not None and form.weight_col is None and not adapter.takes_weights:
        raise DataError(
            f"sample_weight= is a {type(form.weights).__name__}, but {form.argument}= is a {kind}: "
            'give the name of a column, or put the weights into the data as the entry "w" beside "x" and "y".'
        )


def check_names(adapter: Adapter, argument: str, **names: Any) -> None:
    """Raise if an argument names columns of data that has none."""
    data = adapter.data
    if adapter.takes_columns or (isinstance(data, dict) and names.get("feature_cols") is not None):
        return
    for name, value in names.items():
        if value is not None:
            raise ArgumentError(
                f"{name}={value!r}: {argument}= is a {type(data).__name__} without named columns, so that {name}= "
                "would be ignored. Leave it out, or give a DataFrame, a table or XShards of them."
            )
