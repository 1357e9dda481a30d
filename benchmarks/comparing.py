"""Shared by the comparisons here: interleaved runs of two sides, and their ratio compared with a target."""

from __future__ import annotations

import functools
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orca.core.machine import usable_cpus

Side = Callable[[], float]
Numbers = dict[str, list[float]]
Part = tuple[set[str], Callable[[], list[str]]]
"""Sections that are measured together, and the function that measures them and returns the lines to print."""

_MET, _MISSED, _ABSENT = "met", "MISSED", "not measured"


@dataclass(frozen=True)
class Comparison:
    """Our side compared with a peer, and the bar for the ratio of their results, if any."""

    section: str
    title: str
    ours: str
    peer: str
    bar: float | None
    unit: str = "rows/s"

    def lines(self, results: Numbers) -> list[str]:
        head = f"{self.section:<3} {self.title:<46}"
        absent = [side for side in (self.ours, self.peer) if side not in results]
        if absent:
            return [f"{head} {_ABSENT}: {' and '.join(absent)} failed"]
        ratios = [ours / peer for ours, peer in zip(results[self.ours], results[self.peer], strict=True)]
        ratio = statistics.median(ratios)
        lines = [
            f"{head} ratio {ratio:>6.3f}  {self._verdict(ratio):<20} turns: {', '.join(map('{:.3f}'.format, ratios))}"
        ]
        for role, side in (("ours", self.ours), ("peer", self.peer)):
            every = ", ".join(number(value, self.unit) for value in results[side])
            median = number(statistics.median(results[side]), self.unit)
            lines.append(f"      {role}  {side:<38} {median:>10} {self.unit:<6}  ({every})")
        return lines

    def _verdict(self, ratio: float) -> str:
        if self.bar is None:
            return "no bar"
        faster = self.unit == "rows/s"  # otherwise seconds, where less is better
        met = ratio >= self.bar if faster else ratio <= self.bar
        return f"bar {'>=' if faster else '<='} {self.bar:<4}  {_MET if met else _MISSED}"


def number(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "rows/s" else f"{value:.2f}"


def take_turns(sides: dict[str, Side], turns: int, unit: str, flip: bool = True) -> Numbers:
    """Interleave the sides, with `flip` in reverse order every other turn; report and skip a side that fails."""
    results: Numbers = {name: [] for name in sides}
    for turn in range(turns):
        for name in list(reversed(results)) if flip and turn % 2 else list(results):
            try:
                value = sides[name]()
            except Exception as error:
                print(f"  {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:600]}", flush=True)
                del results[name]
                continue
            print(f"  turn {turn + 1}: {name:<38} {number(value, unit):>10} {unit}", flush=True)
            results[name].append(value)
    return results


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def called_twice(
    section: str, title: str, works: dict[str, Callable[[], Any]], bar: float | None, rows: int, turns: int
) -> list[str]:
    """Compare the rows/s of two sides, ours first. Each turn calls a side twice in a row.

    The bar applies to the second call. The first call runs after the other side and shows the cost of a restart, as Ray
    and Spark may have ended the processes that held the model, or assigned them to the other side.
    """
    after_other: Numbers = {name: [] for name in works}

    def twice(name: str) -> float:
        after_other[name].append(rows / seconds_of(works[name]))
        return rows / seconds_of(works[name])

    sides: dict[str, Side] = {name: functools.partial(twice, name) for name in works}
    results = take_turns(sides, turns, "rows/s", flip=False)
    lines = Comparison(section, title, *works, bar).lines(results)
    if len(results) == len(works):
        lines += Comparison(section, f"{title}, first call", *works, bar).lines(after_other)
    return lines


def facts(packages: Iterable[str], threads: str) -> str:
    """Describe the machine and the package versions in one line."""
    versions = []
    for name in packages:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return (
        f"{usable_cpus()} cores, {threads}, load {os.getloadavg()[0]:.1f} at the start; "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def chosen(text: str, sections: Sequence[str]) -> set[str]:
    """Return the sections that are named in full or by their number."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in names if not any(section.startswith(part) for section in sections)]
    if unknown:
        raise SystemExit(f"--only {text}: there is no section {', '.join(unknown)}. Sections: {', '.join(sections)}.")
    return {section for section in sections if any(section.startswith(part) for part in names)}


def measure(parts: Iterable[Part], sections: set[str], head: list[str], apart: bool = False) -> None:
    """Measure these sections and print the report at the end; exit with code 1 if a measurement failed.

    With `apart` each part runs in a separate process, so that none is affected by what another left in memory.
    """
    print("\n".join(head), flush=True)
    report: list[str] = []
    for own, work in parts:
        if sections & own:
            try:
                report += in_own_process(work) if apart else work()
            except Exception as error:  # the other sections still count
                traceback.print_exc()
                report.append(f"{min(own)[0]:<3} {_ABSENT}: {type(error).__name__}: {error}")
    verdicts = [line for line in report if f"  {_MET} " in line or f"  {_MISSED} " in line]
    missed = sum(f"  {_MISSED} " in line for line in verdicts)
    absent = sum(_ABSENT in line for line in report)
    counts = f"bars: {len(verdicts) - missed} met, {missed} missed; comparisons {_ABSENT}: {absent}"
    print("\n" + "\n".join([*head, *report, counts]))
    # The machine may cause a missed bar, but never a failed side.
    if absent:
        raise SystemExit(1)


def in_own_process(work: Callable[[], list[str]]) -> list[str]:
    """Run the work, which must be picklable, in a new process and return its report."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(work, there))
    child.start()
    there.close()
    try:
        return list(here.recv())
    except EOFError:
        raise RuntimeError("its process failed; see its output above") from None
    finally:
        child.join()


def _report(work: Callable[[], list[str]], to: Any) -> None:
    to.send(work())


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Limit processes started in this context to `count` cores, which Orca's ranks share as their threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
