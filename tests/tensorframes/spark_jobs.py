"""Counts the jobs that Spark runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def counted(session: Any) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of jobs started since."""
    context = session.sparkContext
    group = f"counted {uuid.uuid4()}"
    context.setJobGroup(group, "jobs of a test")
    try:
        yield lambda: len(context.statusTracker().getJobIdsForGroup(group))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
