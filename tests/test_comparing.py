"""The comparison code of the benchmarks: a failed measurement never counts as a result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from comparing import Comparison, measure, take_turns


def show(peer, bars):
    results = take_turns({"ours": lambda: 2.0, "peer": peer}, 2, "rows/s")
    return [line for bar in bars for line in Comparison("1", "speed", "ours", "peer", bar).lines(results)]


def fails() -> float:
    raise OSError("no such peer")


def test_met_and_missed_bars_are_counted_in_the_last_line(capsys):
    measure([({"1"}, lambda: show(lambda: 1.0, [1.5, 3.0, 1.9, None]))], {"1"}, ["head"])
    assert capsys.readouterr().out.splitlines()[-1] == "bars: 2 met, 1 missed; comparisons not measured: 0"


@pytest.mark.parametrize("work", [lambda: show(fails, [1.0]), fails])
def test_a_side_that_fails_ends_with_exit_code_1(capsys, work):
    with pytest.raises(SystemExit) as ended:
        measure([({"1"}, work), ({"2"}, lambda: show(lambda: 1.0, [1.0]))], {"1", "2"}, ["head"])
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "bars: 1 met, 0 missed; comparisons not measured: 1"


def sound() -> list[str]:
    return show(lambda: 1.0, [1.0])


def test_parts_in_separate_processes_report_and_fail_the_same_way(capsys):
    with pytest.raises(SystemExit) as ended:
        measure([({"1"}, fails), ({"2"}, sound)], {"1", "2"}, ["head"], apart=True)
    assert ended.value.code == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "bars: 1 met, 0 missed; comparisons not measured: 1"
    assert "its process failed" in output
