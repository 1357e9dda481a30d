"""Types and shapes of the tensors of a record, from what users say or from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.context import current
from orca.errors import ArgumentError
from orca.shards import records
from orca.shards.adapters.base import Form, Place
from orca.shards.adapters.registry import adapt
from orca.shards.tree import leaves


@dataclass(frozen=True)
class TensorMeta:
    """Type, shape and name of one tensor of a record, without the axis of rows."""

    dtype: Any
    shape: tuple[int | None, ...] = ()
    name: str | None = None
    marked: bool = False
    """Whether values are bytes that end with a mark."""


def placeholder_of(meta: TensorMeta) -> Any:
    """Create the placeholder of a tensor in the current graph."""
    return v1.placeholder(meta.dtype, (None, *meta.shape), meta.name)


def unmarked(meta: TensorMeta, placeholder: Any) -> Any:
    """Return the values of a placeholder without their marks."""
    if not meta.marked:
        return placeholder
    length = v1.strings.length(placeholder)
    return v1.strings.substr(placeholder, v1.zeros_like(length), length - len(records.MARK))


def metas_of(spec: Any) -> Any:
    """Return what ``(dtype, shape)``, or a list or dict of it, says of the tensors."""
    if isinstance(spec, TensorMeta):
        return spec
    if isinstance(spec, dict):
        return {name: metas_of(part) for name, part in spec.items()}
    if isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], tuple | list) and not _is_nested(spec[0]):
        return TensorMeta(v1.as_dtype(spec[0]), tuple(spec[1]))
    if isinstance(spec, list | tuple):
        return [metas_of(part) for part in spec]
    return TensorMeta(v1.as_dtype(spec))


def _is_nested(spec: Any) -> bool:
    return isinstance(spec, tuple | list | dict)


def meta_of(array: Any) -> TensorMeta:
    """Return what an array says of its tensor; numbers of double precision are fed as float32."""
    dtype = v1.float32 if array.dtype == np.float64 else v1.as_dtype(array.dtype)
    return TensorMeta(dtype, tuple(array.shape[1:]))


def meta_of_spec(spec: Any) -> TensorMeta:
    """Return what a TensorSpec says."""
    return TensorMeta(spec.dtype, tuple(spec.shape.as_list()))


def column_metas(frame: Any, columns: Sequence[str]) -> list[TensorMeta]:
    """Return the tensors of columns, by their first row."""
    context = current()
    form = Form(feature_cols=list(columns), need_labels=False, together=False)
    first = adapt(frame).head(1, form, Place(context.engine))
    arrays = [array for _, array in leaves(first)]
    if len(arrays) == len(columns):
        return [replace(meta_of(array), name=name) for array, name in zip(arrays, columns, strict=True)]
    raise ArgumentError(f"The columns {list(columns)} gave {len(arrays)} arrays; expected one of each column.")
