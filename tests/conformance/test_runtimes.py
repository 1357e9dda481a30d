"""Every runtime, Orca's own and one of another package, through the conformance checks, without a framework."""

from __future__ import annotations

import pytest

from orca.testing import RUNTIME_CHECKS, check_runtime, require
from orca.testing.linear import LINEAR_CASE
from orca.testing.runtime import Trial
from tests.conformance.conftest import joined
from tests.conftest import RUNTIMES


@pytest.mark.parametrize("check", [name for name in RUNTIME_CHECKS if name != "stops"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_conforms(runtime, check, request, perform):
    trial = Trial(joined(runtime, request), LINEAR_CASE)
    perform(RUNTIME_CHECKS[check], trial, name="runtime", runtime=runtime)


def test_local_runtime_starts_and_stops():
    check_runtime("local", ["starts", "call", "stops"])


@pytest.mark.slow
def test_runtime_of_another_package_conforms():
    results = check_runtime("subprocesses", raises=False)
    require(results)
    assert {result.outcome for result in results} == {"passed"}
