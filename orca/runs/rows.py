"""How the rows of a call are read: the form that its model and its arguments ask for, and rows as sources of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orca.runs.values import RowsRequest, Setup
from orca.shards.adapters.base import Feedable, Form
from orca.shards.adapters.registry import adapt, check_extras
from orca.shards.columns import Columns, flat
from orca.shards.engines.base import Engine


def form_of(setup: Setup, request: RowsRequest, batch_size: int, need_labels: bool | None = None) -> Form:
    """Return how to read the rows of a call."""
    framework = setup.backend.framework
    return Form(
        labels=request.y,
        feature_cols=request.feature_cols,
        label_cols=request.label_cols,
        need_labels=framework.needs_labels(setup.spec) if need_labels is None else need_labels,
        together=are_together(setup, request.feature_cols),
        creator_arguments=framework.creator_arguments(setup.spec.config, batch_size),
        weights=request.sample_weight,
        triples=framework.triples,
    )


def are_together(setup: Setup, feature_cols: Columns) -> bool:
    """Whether several columns of single numbers are one matrix, and not one input each."""
    count = setup.backend.framework.inputs(setup.spec).count
    return count is None or count == 1 or count != len(flat(feature_cols))


@contextmanager
def stored(data: object, form: Form, engine: Engine) -> Iterator[Feedable]:
    """Store the rows as shards; what was copied for this call is freed after it, also if it fails."""
    adapter = adapt(data)
    check_extras(adapter, form)
    shards = adapter.shards(form, engine)
    try:
        yield shards
    finally:
        shards.release()
