"""The fault matrix: every fault in every phase of a backend on a runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from orca.testing.backend import running
from orca.testing.cases import BackendCase
from orca.testing.fault_apart import perform_apart
from orca.testing.fault_cells import FaultResult, perform_cell
from orca.testing.fault_kinds import FAULTS, PHASES, FaultKind, reason
from orca.testing.report import SKIPPED, require

if TYPE_CHECKING:
    from orca.context import Context


def check_faults(
    case: BackendCase,
    runtime: str | Context | None = None,
    faults: Iterable[str] | None = None,
    phases: Iterable[str] | None = None,
    *,
    raises: bool = True,
) -> list[FaultResult]:
    """Check that a backend survives faults on one runtime.

    In each cell a fault strikes a certain phase. The call has to end with an OrcaError, or with the exact result where
    the fault can be survived, within seconds. The next calls have to give exact results, with no row lost or
    repeated, and nothing may be left behind.

    Args:
        case: How to make a small model of the backend and look into it.
        runtime: The name of a runtime, which is started and stopped; or a context that runs. By default the
            active context.
        faults: Names from `FAULTS`; by default all.
        phases: Names from `PHASES`; by default all.
        raises: Whether failed cells raise one AssertionError after the last one.

    Returns:
        One result for each cell; those that do not apply are skipped with a reason.

    Raises:
        AssertionError: If something did not hold, with the reasons of all cells.
    """
    kinds = [FAULTS[name] for name in _known("faults", faults, FAULTS)]
    wanted = _known("phases", phases, dict.fromkeys(PHASES))
    with running(runtime) as context:
        results = [perform_fault(kind, phase, case, context) for kind in kinds for phase in wanted]
    if raises:
        require(results)
    return results


def perform_fault(kind: FaultKind, phase: str, case: BackendCase, context: Context, first: bool = True) -> FaultResult:
    """Run one cell, in a driver of its own if the fault needs one; return its result."""
    why = reason(kind, phase, case, context.runtime, first)
    if why:
        name = f"{kind.name} in {phase}"
        return FaultResult(name, 0.0, SKIPPED, why, case.title, context.runtime, kind.name, phase)
    if kind.apart:
        return perform_apart(kind, phase, case, context.runtime)
    return perform_cell(kind, phase, case, context)


def _known(argument: str, names: Iterable[str] | None, known: Mapping[str, object]) -> list[str]:
    if names is None:
        return list(known)
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        from orca.errors import ArgumentError, suggest

        hint = suggest(unknown[0], known)
        raise ArgumentError(f"{argument}={unknown}: unknown. Known are: {', '.join(known)}.{hint}")
    return names


__all__ = ["check_faults", "perform_fault"]
