"""Orca: one sklearn-style Estimator that trains standard models on the laptop, on Ray or on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orca.backends.mxnet import numpy_compat
from orca.core import session

__version__ = "0.1.0"

if TYPE_CHECKING:
    from orca.backends.mxnet.config import create_config
    from orca.context import OrcaContext, init_orca_context, stop_orca_context
    from orca.errors import OrcaError, WorkerError
    from orca.estimator import Estimator
    from orca.history import History
    from orca.shards.xshards import XShards
    from orca.store import Store

_PLACES = {
    "Estimator": "orca.estimator",
    "History": "orca.history",
    "create_config": "orca.backends.mxnet.config",
    "OrcaContext": "orca.context",
    "OrcaError": "orca.errors",
    "Store": "orca.store",
    "WorkerError": "orca.errors",
    "XShards": "orca.shards.xshards",
    "init_orca_context": "orca.context",
    "stop_orca_context": "orca.context",
}

__all__ = [
    "Estimator",
    "History",
    "OrcaContext",
    "OrcaError",
    "Store",
    "WorkerError",
    "XShards",
    "__version__",
    "create_config",
    "init_orca_context",
    "stop_orca_context",
]

numpy_compat.install()
session.provide(lambda: import_module("orca.context").current())


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import orca` is quick and needs nothing but itself.
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'orca' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
