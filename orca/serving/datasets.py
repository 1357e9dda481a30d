"""Stored datasets as inputs (``?datax=name``): read by the server, checked like the data of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import ArgumentError, NotStoredError, OrcaError, UntrustedError
from orca.serving import checks
from orca.serving.messages import HttpError
from orca.serving.settings import Settings
from orca.store import Store
from orca.store.values import Port

if TYPE_CHECKING:
    from orca.serving.application import Application

Array = np.ndarray[Any, Any]
_TABLES = ("pandas", "arrow")


async def read(app: Application, name: str, ports: tuple[Port, ...]) -> list[Array]:
    """Return one array per input from a stored dataset."""
    columns = await asyncio.to_thread(_columns, app.store, name, app.settings)
    arrays = [_converted(port, _pick(columns, port, len(ports))) for port in ports]
    for port, array in zip(ports, arrays, strict=True):
        checks.check_shape(port, array.shape)
    size = sum(array.nbytes for array in arrays)
    if size > app.settings.max_body:
        limit = app.settings.max_body
        raise HttpError(413, f"The dataset has {size:,} bytes; the limit of this server is {limit:,} (--max-body).")
    return arrays


def _columns(store: Store, name: str, settings: Settings) -> dict[str, Array]:
    """Return the arrays of a dataset by name; a single array has an empty name."""
    base = name.partition("{")[0]
    try:
        kind = store.datasets.metadata(base)["kind"]
        if kind == "virtual" and base not in settings.allow_virtual:
            raise HttpError(
                403, f"The dataset {base!r} is a program: the server runs it only if started with --allow-virtual."
            )
        data = store.datasets.get(name, as_="numpy") if kind in _TABLES else store.datasets.get(name)
    except (NotStoredError, ArgumentError):
        raise HttpError(404, f"The store has no dataset {base[:200]!r}.") from None
    except UntrustedError:
        raise HttpError(403, f"The dataset {base!r} is a program that another user signed; it is not run.") from None
    except OrcaError:
        raise HttpError(400, f"The dataset {base!r} cannot be read as arrays.") from None
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # a virtual dataset may return a DataFrame
        return {str(column): np.asarray(data[column]) for column in data.columns}
    if isinstance(data, Mapping):
        return {str(column): np.asarray(values) for column, values in data.items()}
    if isinstance(data, np.ndarray | list):
        return {"": np.asarray(data)}
    raise HttpError(400, f"The dataset {base!r} holds {type(data).__name__}; the server takes tables and arrays.")


def _pick(columns: dict[str, Array], port: Port, inputs: int) -> Array:
    if port.name in columns:
        return columns[port.name]
    if inputs == 1 and len(columns) == 1:
        return next(iter(columns.values()))
    if inputs == 1 and all(array.ndim == 1 for array in columns.values()):
        return np.stack([*columns.values()], axis=1)  # columns of numbers are the features
    listed = ", ".join(list(columns)[:20])
    raise HttpError(400, f"The dataset has no column {port.name!r}. Columns: {listed}.")


def _converted(port: Port, array: Array) -> Array:
    """Return stored numbers in the type of the input: tables have float64 where the model takes float32."""
    if array.dtype == object and len(array) and isinstance(array[0], np.ndarray | list):
        try:
            array = np.stack([np.asarray(row) for row in array])
        except ValueError:
            raise HttpError(400, f"The rows of the dataset for {port.name!r} have different shapes.") from None
    dtype = np.dtype(port.dtype)
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise HttpError(400, f"The input {port.name!r} takes {port.dtype}; the dataset has {array.dtype}.")
    if array.ndim == 1 and len(port.shape) == 2:
        array = array[:, None]
    with np.errstate(over="ignore"):
        converted = array.astype(dtype, copy=False)
    lost = np.isfinite(array) & ~np.isfinite(converted) if dtype.kind == "f" else converted != array
    if lost.any():
        raise HttpError(400, f"The input {port.name!r} takes {port.dtype}, and a number in the dataset is beyond it.")
    return np.ascontiguousarray(converted)
