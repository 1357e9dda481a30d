"""Runs one case after another and counts how they end: accepted, refused with an OrcaError, or crashed."""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from orca.errors import OrcaError

CASE_SECONDS = 20


class Hang(BaseException):
    """A case took too long."""


@dataclass
class Report:
    """What a target did with its cases."""

    target: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def run(self, check: Callable[[Any], object], case: Any) -> None:
        """Run one case; an error of Orca's is a refusal, any other exception a crash."""
        self.cases += 1
        signal.alarm(CASE_SECONDS)
        try:
            check(case)
            self.accepted += 1
        except OrcaError:
            self.refused += 1
        except Exception as error:
            self._crash(error, case)
        except Hang as error:
            self._crash(error, case)
        finally:
            signal.alarm(0)

    def _crash(self, error: BaseException, case: Any) -> None:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if "/fuzzing/reports" not in frame.filename
        ]
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        own = next(
            (f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in reversed(frames) if "/tests/" not in f.filename), ""
        )
        name = f"{type(error).__name__} at {own or place}"
        self.crashes[name] += 1
        if name not in self.examples:
            self.examples[name] = f"{repr(case)[:600]}\n{''.join(traceback.format_exception(error))[-2500:]}"

    def line(self) -> str:
        crashes = sum(self.crashes.values())
        return (
            f"{self.target:<14} {self.cases:>9,} {self.accepted:>9,} {self.refused:>9,} {crashes:>8} "
            f"{self.seconds:>8.1f}"
        )


HEADER = f"{'target':<14} {'cases':>9} {'accepted':>9} {'refused':>9} {'crashes':>8} {'seconds':>8}"


def _hang(*_: object) -> None:
    raise Hang(f"a case took more than {CASE_SECONDS} s")


def fuzz(target: str, strategy: SearchStrategy[Any], check: Callable[[Any], object], cases: int, start: int) -> Report:
    """Run `cases` examples of a strategy."""
    report, began = Report(target), time.monotonic()
    old = signal.signal(signal.SIGALRM, _hang)
    level = logging.getLogger("orca").level
    logging.getLogger("orca").setLevel(logging.CRITICAL)
    try:
        number = start
        while report.cases < cases:
            # Hypothesis ends a run early where it finds little that is new: continue with another seed.
            @seed(number)
            @settings(
                max_examples=min(cases - report.cases, 10_000),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            @given(strategy)
            def each(case: Any) -> None:
                report.run(check, case)

            each()
            number += 1
    finally:
        logging.getLogger("orca").setLevel(level)
        signal.signal(signal.SIGALRM, old)
    report.seconds = time.monotonic() - began
    return report
