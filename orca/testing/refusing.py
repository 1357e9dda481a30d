"""Checks of refusals: what cannot work is refused on the driver, with words that help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orca.errors import ArgumentError, ColumnError, ResourceError
from orca.testing.cases import NAMES, SEED, BackendCase, frame_of, to_pandas
from orca.testing.comparing import refused
from orca.testing.report import Check

if TYPE_CHECKING:
    from orca.context import Context


def misspelled_column(case: BackendCase, context: Context) -> None:
    """A misspelled column is refused with the columns that exist."""
    frame = to_pandas(frame_of(context, *case.data(61)))
    wrong = [*NAMES[:-1], "c55"]
    if case.trains:
        est = case.make(2, seed=SEED)
        refused(ColumnError, lambda: est.fit(frame, feature_cols=wrong, label_cols=["label"]), ["c55", "c5", "label"])
    est = case.make(2)
    refused(ColumnError, lambda: est.predict(frame, feature_cols=wrong), ["c55", "c5"])


def batch_smaller_than_workers(case: BackendCase, context: Context) -> None:
    """A global batch that leaves workers without rows is refused with both numbers."""
    est = case.make(case.most, seed=SEED)
    words = [f"batch_size={case.most - 1}", f"workers={case.most}"]
    refused(ArgumentError, lambda: est.fit(*case.data(20), batch_size=case.most - 1), words)


def too_many_workers(case: BackendCase, context: Context) -> None:
    """More workers than slots are refused with both numbers and advice."""
    workers = context.cores + 44
    est = case.make(workers, seed=SEED)
    words = [f"{workers}", f"{context.cores}", "Use "]
    refused(ResourceError, lambda: est.fit(*case.data(200), batch_size=2 * workers), words)


CHECKS = [
    Check("misspelled_column", misspelled_column),
    Check("batch_smaller_than_workers", batch_smaller_than_workers, ("trains",)),
    Check("too_many_workers", too_many_workers, ("trains", "processes")),
]
