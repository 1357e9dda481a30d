"""The fault matrix finds what it is for; the soak test sees growth."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from orca.context import Context
from orca.errors import ArgumentError
from orca.testing import check_faults, fault_table
from orca.testing.fault_kinds import FAULTS, PHASES, reason
from orca.testing.linear import LINEAR_CASE, LinearReplica
from orca.testing.soak import Sample, Soak, grown, measure
from tests.orca.test_testing import mutated


class SwallowsErrors(LinearReplica):
    """Turns an exception into wrong results."""

    def evaluate_step(self, data, want_output):
        try:
            return super().evaluate_step(data, want_output)
        finally:
            self._weights = self._weights + 1


class LeavesFiles(LinearReplica):
    """Leaves a temporary file behind with every replica."""

    def __init__(self, spec, seed, context=None):
        super().__init__(spec, seed, context)
        import tempfile

        os.close(tempfile.mkstemp(prefix="orca-left-")[0])


def test_a_backend_that_leaves_files_behind_fails(local: Context):
    (result,) = check_faults(mutated(LeavesFiles), local, ["raise"], ["fit"], raises=False)
    assert result.outcome == "failed"
    assert "orca-left-" in result.left
    (result,) = check_faults(LINEAR_CASE, local, ["raise"], ["fit"])
    assert result.ended == "error"
    assert result.to_end is not None


def test_a_backend_that_changes_its_state_fails(local: Context):
    (result,) = check_faults(mutated(SwallowsErrors), local, ["slow"], ["evaluate"], raises=False)
    assert result.outcome == "failed"
    assert "AssertionError" in result.detail


def test_unknown_faults_and_phases_are_refused(local: Context):
    with pytest.raises(ArgumentError, match=r"faults=\['kil'\].*Did you mean 'kill'"):
        check_faults(LINEAR_CASE, local, ["kil"])
    with pytest.raises(ArgumentError, match=r"phases=\['fitt'\].*Did you mean 'fit'"):
        check_faults(LINEAR_CASE, local, phases=["fitt"])


def test_cells_that_do_not_apply_say_why(local: Context):
    results = check_faults(LINEAR_CASE, local, ["raylet killed", "executor killed"], ["fit"])
    assert [(result.outcome, result.detail) for result in results] == [
        ("skipped", "only Ray has raylets"),
        ("skipped", "only Spark has executors"),
    ]
    only = replace(LINEAR_CASE, inference_only=True)
    assert all(reason(kind, phase, only, "local") for kind in FAULTS.values() for phase in PHASES)
    assert "2" in fault_table(results).splitlines()[-1]


@pytest.mark.slow
def test_every_operation_of_the_soak_test_works(local: Context, tmp_path):
    work = Soak(local, LINEAR_CASE, 0, str(tmp_path))
    for _, _, operation in work._operations:
        operation()
    sample = measure(local, time.monotonic(), len(work._operations))
    assert sample.driver_mb > 0
    assert sample.all_mb >= sample.driver_mb
    assert not grown([sample, sample])


def test_the_soak_test_sees_growth():
    first = Sample(0, 10, 100.0, 200.0, 20, 5, 2, 3)
    assert grown([first, replace(first, files=4)]) == ["files: 3 to 4"]
    assert grown([first, replace(first, driver_mb=118.0)]) == []
    assert grown([first, replace(first, driver_mb=150.0)]) == ["driver_mb: 100.0 to 150.0"]
