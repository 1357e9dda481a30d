"""Every kind of data that needs no heavy framework through the conformance checks."""

from __future__ import annotations

import pytest

from orca.testing import ADAPTER_CHECKS
from tests.conformance.adapter_cases import CLUSTERS, LOCAL
from tests.conformance.conftest import joined

CASES = [("local", case, check) for case in LOCAL for check in ADAPTER_CHECKS.values() if not check.reason(case)]
CASES += [
    pytest.param(runtime, case, check, marks=getattr(pytest.mark, runtime))
    for runtime, cases in CLUSTERS.items()
    for case in cases
    for check in ADAPTER_CHECKS.values()
    if not check.reason(case)
]


@pytest.mark.parametrize(
    ("runtime", "case", "check"), CASES, ids=lambda value: str(getattr(value, "name", value)).replace(" ", "-")
)
def test_adapter_conforms(runtime, case, check, request, perform):
    perform(check, case, joined(runtime, request), name=case.name, runtime=runtime)
