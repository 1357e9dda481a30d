"""The cells of the fault matrix: all of them, and the sample that every run of the tests includes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from orca.testing import FAULTS, PHASES, BackendCase, FaultKind, FaultResult
from orca.testing.fault_kinds import reason
from orca.testing.report import SKIPPED

RUNTIMES = ("local", "ray", "spark")


@dataclass(frozen=True)
class FaultCell:
    """A fault in a phase of a backend on a runtime."""

    kind: FaultKind
    phase: str
    case: BackendCase
    runtime: str
    first: bool

    @property
    def name(self) -> str:
        return f"{self.runtime}-{self.case.title}-{self.kind.name}-{self.phase}".replace(" ", "_")

    @property
    def reason(self) -> str:
        return reason(self.kind, self.phase, self.case, self.runtime, self.first)

    def skipped(self) -> FaultResult:
        """The result of a cell that does not apply."""
        return FaultResult(
            *(self.name, 0.0, SKIPPED, self.reason, self.case.title, self.runtime, self.kind.name, self.phase)
        )

    def param(self) -> object:
        marks = [] if self.runtime == "local" else [getattr(pytest.mark, self.runtime)]
        marks += [pytest.mark.horovod] if self.case.name.endswith(".horovod") else []
        return pytest.param(self, marks=[*marks, pytest.mark.slow, pytest.mark.timeout(900)], id=self.name)


def all_cells(cases: Sequence[BackendCase], first: BackendCase | None) -> list[FaultCell]:
    """Return all cells of cases, of which the first stands for all where the backend makes no difference."""
    return [
        FaultCell(kind, phase, case, runtime, case is first)
        for runtime, case, kind, phase in itertools.product(RUNTIMES, cases, FAULTS.values(), PHASES)
    ]


def sample_of(cells: Sequence[FaultCell], names: Sequence[str]) -> list[FaultCell]:
    """Return the cells of these names."""
    by_name = {cell.name: cell for cell in cells}
    return [by_name[name] for name in names]
