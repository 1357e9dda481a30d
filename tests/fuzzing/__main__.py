"""``python -m tests.fuzzing --cases 100000``: fuzzes every target and prints a table; fails if anything crashed."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time

from tests.fuzzing.reports import HEADER, Report
from tests.fuzzing.targets import TARGETS, run

GUIDED = ("packing", "handshake", "messages", "hello")
"""Targets that atheris fuzzes, where it is installed."""


def guided(target: str, cases: int, seed: int) -> Report:
    """Let atheris fuzz a target in a process of its own, which ends at the first crash."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-runs={cases}", f"-seed={seed + 1}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=4096"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzzing.coverage", target, *options, f"-artifact_prefix={folder}/"],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
    counted = re.findall(r"Done (\d+) runs|#(\d+)\s", done.stderr)
    report = Report(f"{target}*", seconds=time.monotonic() - began)
    report.cases = max((int(whole or part) for whole, part in counted), default=0)
    if done.returncode:
        report.crashes["atheris"] = 1
        report.examples["atheris"] = done.stderr[-3000:]
    return report


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="number of cases for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default=",".join(TARGETS), help="names separated by commas")
    options = parser.parse_args()
    with_atheris = importlib.util.find_spec("atheris") is not None
    reports = []
    print(HEADER, flush=True)
    for target in options.targets.split(","):
        if target in GUIDED and with_atheris:
            report = guided(target, options.cases, options.seed)
        else:
            report = run(target, options.cases, options.seed)
        print(report.line(), flush=True)
        reports.append(report)
    if with_atheris:
        print("* guided by coverage, with atheris, which does not say how many cases were accepted")
    for report in reports:
        for name, count in report.crashes.most_common():
            print(f"\n{report.target}: {count} times {name}\n{report.examples[name]}")
    if any(report.crashes for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
