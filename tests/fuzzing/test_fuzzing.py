"""A small fixed number of fuzz cases for each target; `make fuzz` runs many more."""

from __future__ import annotations

import pytest

from tests.fuzzing.targets import run

CASES = {"rows": 600, "states": 600, "packing": 1500, "handshake": 600, "messages": 150, "hello": 600}


@pytest.mark.parametrize("target", CASES)
def test_no_case_ends_with_a_foreign_exception(target):
    report = run(target, CASES[target])
    assert not report.crashes, "\n\n".join(f"{name}\n{text}" for name, text in report.examples.items())
    assert report.cases >= CASES[target]
    # Neither refuses everything nor accepts everything.
    assert report.accepted > 0
    assert report.refused > 0 or target in ("handshake", "messages", "hello")
