"""A few fuzz cases for the command line, whose models run on OpenVINO."""

from __future__ import annotations

from tests.fuzzing.targets import run


def test_no_command_ends_with_a_foreign_exception():
    report = run("commands", 60)
    assert not report.crashes, "\n\n".join(f"{name}\n{text}" for name, text in report.examples.items())
    assert report.accepted > 0
