"""Conformance checks for backends, runtimes and adapters, of Orca and of other packages.

>>> from orca.testing import BACKEND_CHECKS
>>> {"even_shards", "killed_rank", "predict_frames"} <= set(BACKEND_CHECKS)
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orca.testing.adapter import ADAPTER_CHECKS, AdapterCase, check_adapter
    from orca.testing.backend import BACKEND_CHECKS, check_backend
    from orca.testing.cases import BackendCase
    from orca.testing.fault_cells import FaultResult, fault_table
    from orca.testing.fault_kinds import FAULTS, PHASES, FaultKind
    from orca.testing.fault_matrix import check_faults
    from orca.testing.report import Check, NotApplicable, Result, require, table
    from orca.testing.runtime import RUNTIME_CHECKS, check_runtime

_PLACES = {
    "ADAPTER_CHECKS": "adapter",
    "AdapterCase": "adapter",
    "BACKEND_CHECKS": "backend",
    "BackendCase": "cases",
    "Check": "report",
    "FAULTS": "fault_kinds",
    "FaultKind": "fault_kinds",
    "FaultResult": "fault_cells",
    "PHASES": "fault_kinds",
    "RUNTIME_CHECKS": "runtime",
    "NotApplicable": "report",
    "Result": "report",
    "check_adapter": "adapter",
    "check_backend": "backend",
    "check_faults": "fault_matrix",
    "fault_table": "fault_cells",
    "check_runtime": "runtime",
    "require": "report",
    "table": "report",
}

__all__ = [
    "ADAPTER_CHECKS",
    "AdapterCase",
    "BACKEND_CHECKS",
    "BackendCase",
    "Check",
    "FAULTS",
    "FaultKind",
    "FaultResult",
    "NotApplicable",
    "PHASES",
    "RUNTIME_CHECKS",
    "Result",
    "check_adapter",
    "check_backend",
    "check_faults",
    "check_runtime",
    "fault_table",
    "require",
    "table",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: ranks import this package for faults only.
    if name in _PLACES:
        return getattr(import_module(f"orca.testing.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'orca.testing' has no attribute {name!r}")
