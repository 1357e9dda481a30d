"""Results of checks: one per check, an error for those that failed, and a table of many."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class NotApplicable(Exception):
    """Raised by a check that says nothing about its subject; the text gives the reason."""


@dataclass(frozen=True)
class Result:
    """The outcome of one check: "passed", "failed" or "skipped", and why."""

    check: str
    seconds: float
    outcome: str
    detail: str = ""
    subject: str = ""
    runtime: str = ""


@dataclass(frozen=True)
class Check:
    """A named property of backends, runtimes or adapters.

    Args:
        name: The name in reports.
        run: Raises AssertionError if the property does not hold.
        needs: Attributes of the subject that have to be true for the check to apply.
        remote: Whether the outcome may depend on framework and runtime together, so that it is worth a run on each.
    """

    name: str
    run: Callable[..., None]
    needs: tuple[str, ...] = ()
    remote: bool = False

    def reason(self, subject: object) -> str:
        """Return why the check does not apply to this subject, or nothing."""
        missing = [need for need in self.needs if not getattr(subject, need)]
        return f"needs {', '.join(missing)}" if missing else ""

    def __call__(self, subject: Any, *args: Any) -> None:
        reason = self.reason(subject)
        if reason:
            raise NotApplicable(reason)
        self.run(subject, *args)


def chosen(known: Mapping[str, Check], names: Iterable[str] | None) -> list[Check]:
    """Return the checks of these names, or all.

    >>> chosen({"a": Check("a", print)}, ["b"])
    Traceback (most recent call last):
    ...
    orca.errors.ArgumentError: checks=['b']: unknown. Checks: a.
    """
    if names is None:
        return list(known.values())
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        from orca.errors import ArgumentError, suggest

        hint = suggest(unknown[0], known)
        raise ArgumentError(f"checks={unknown}: unknown. Checks: {', '.join(known)}.{hint}")
    return [known[name] for name in names]


def perform(check: Check, subject: Any, *args: Any, name: str = "", runtime: str = "") -> Result:
    """Run one check and return its result; only an interrupt gets through."""
    began = time.monotonic()
    outcome, detail = PASSED, ""
    try:
        check(subject, *args)
    except NotApplicable as reason:
        outcome, detail = SKIPPED, str(reason)
    except Exception:
        outcome, detail = FAILED, traceback.format_exc()
    return Result(check.name, time.monotonic() - began, outcome, detail, name, runtime)


def require(results: Sequence[Result]) -> None:
    """Raise one AssertionError that lists all failed checks, if there are any."""
    failed = [result for result in results if result.outcome == FAILED]
    if failed:
        words = [f"{result.subject} on {result.runtime}: {result.check}\n{result.detail}" for result in failed]
        raise AssertionError(f"{len(failed)} of {len(results)} checks failed.\n\n" + "\n".join(words))


def table(results: Iterable[Result], rows: str = "subject") -> str:
    """Return the results as a table with one column for each runtime.

    Args:
        results: Results of any number of `check_backend`, `check_runtime` and `check_adapter` calls.
        rows: "subject" for one row per backend, or "check" for one row per check.

    >>> print(table([Result("metrics", 0.5, "passed", "", "torch.horovod", "local"),
    ...              Result("metrics", 2.0, "failed", "", "torch.horovod", "ray")]))
                   local           ray
    torch.horovod  1 passed 0.5 s  1 failed 2.0 s (metrics)
    """
    results = list(results)
    columns = list(dict.fromkeys(result.runtime for result in results))
    lines = [["", *columns]]
    for label in dict.fromkeys(getattr(result, rows) for result in results):
        mine = [result for result in results if getattr(result, rows) == label]
        lines.append([label, *(_cell([r for r in mine if r.runtime == column]) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(results: list[Result]) -> str:
    if not results:
        return ""
    counts = {kind: sum(result.outcome == kind for result in results) for kind in (PASSED, FAILED, SKIPPED)}
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    failed = ", ".join(dict.fromkeys(result.check for result in results if result.outcome == FAILED))
    seconds = sum(result.seconds for result in results)
    return f"{words} {seconds:.1f} s" + (f" ({failed})" if failed else "")
