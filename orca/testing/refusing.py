"""Checks before anything starts: what a backend declares is true, and what cannot work is refused with help."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from orca.errors import ArgumentError, ColumnError, ResourceError
from orca.testing.cases import NAMES, SEED, BackendCase, frame_of, to_pandas
from orca.testing.comparing import refused
from orca.testing.report import Check

if TYPE_CHECKING:
    from orca.context import Context


def as_declared(case: BackendCase, context: Context) -> None:
    """Name, topology and flags are those of the case, and the backend can be pickled."""
    est = case.make(2)
    backend, topology = est.backend, est.backend.topology(est.spec, 2)
    assert case.name == f"{backend.framework.name}.{backend.name}", (
        f"{case.name} is {backend.framework.name}.{backend.name}"
    )
    actual = {
        "inference_only": backend.framework.inference_only,
        "lockstep": topology.lockstep,
        "servers": topology.ranks > 2,
        "processes": topology.ranks >= 2,
    }
    declared = {name: getattr(case, name) for name in actual}
    assert declared == actual, f"the case declares {declared}; the backend has {actual}"
    assert len(topology.roles) in (0, topology.ranks), f"{len(topology.roles)} roles of {topology.ranks} ranks"
    assert pickle.loads(pickle.dumps(backend)).name == backend.name, "the backend does not survive pickling"


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
    Check("as_declared", as_declared),
    Check("misspelled_column", misspelled_column),
    Check("batch_smaller_than_workers", batch_smaller_than_workers, ("trains",)),
    Check("too_many_workers", too_many_workers, ("trains", "processes")),
]
