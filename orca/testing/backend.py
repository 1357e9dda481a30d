"""The checks of a backend, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orca.testing import elastic, failing, predicting, refusing, resuming, training
from orca.testing.cases import BackendCase
from orca.testing.report import Check, Result, chosen, perform, require

if TYPE_CHECKING:
    from orca.context import Context

SLOTS = 6
"""Slots of a runtime that a check starts itself."""

BACKEND_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        *refusing.CHECKS,
        *training.CHECKS,
        *predicting.CHECKS,
        *resuming.CHECKS,
        *elastic.CHECKS,
        *failing.CHECKS,
    )
}


def check_backend(
    case: BackendCase,
    runtime: str | Context | None = None,
    checks: Iterable[str] | None = None,
    *,
    raises: bool = True,
) -> list[Result]:
    """Check that a backend keeps Orca's promises on one runtime.

    Args:
        case: How to make a small model of the backend and look into it.
        runtime: The name of a runtime, which is started and stopped; or a context that runs. By default the
            active context.
        checks: Names from `BACKEND_CHECKS`; by default all that apply.
        raises: Whether failed checks raise one AssertionError after the last one.

    Returns:
        One result for each check.

    Raises:
        AssertionError: If a check failed, with the reasons of all that failed.
    """
    wanted = chosen(BACKEND_CHECKS, checks)
    with running(runtime) as context:
        results = [perform(check, case, context, name=case.title, runtime=context.runtime) for check in wanted]
    if raises:
        require(results)
    return results


@contextmanager
def running(runtime: str | Context | None) -> Iterator[Context]:
    """Give the context to check with; one that was started for it is stopped."""
    from orca.context import current, init_orca_context

    if isinstance(runtime, str):
        with init_orca_context(runtime=runtime, cores=SLOTS) as context:
            yield context
    else:
        yield current() if runtime is None else runtime
