"""How the rows of a call are read: the form that its model and its arguments ask for, and rows as sources of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from orca.runs.values import RowsRequest, Setup
from orca.shards.adapters.base import Checks, Feedable, Form
from orca.shards.adapters.registry import adapt, check_extras
from orca.shards.columns import Columns, flat
from orca.shards.engines.base import Engine


def form_of(
    setup: Setup, request: RowsRequest, batch_size: int, need_labels: bool | None = None, most_rows: int | None = None
) -> Form:
    """Return how to read the rows of a call, and what to check of them."""
    framework, spec = setup.backend.framework, setup.spec
    if need_labels is None:
        need_labels = framework.needs_labels(spec)
    return Form(
        labels=request.y,
        feature_cols=request.feature_cols,
        label_cols=request.label_cols,
        need_labels=need_labels,
        together=are_together(setup, request.feature_cols),
        creator_arguments=framework.creator_arguments(spec.config, batch_size),
        weights=request.sample_weight,
        triples=framework.triples,
        flat=framework.flat_counts(spec),
        most_rows=most_rows,
        checks=Checks(
            framework.other_kinds(spec),
            framework.label_rules(spec) if need_labels else {},
            lambda rows: framework.check_rows(spec, rows),
            lambda rows: framework.leaf_types(spec, rows),
        ),
    )


def are_together(setup: Setup, feature_cols: Columns) -> bool:
    """Whether several columns of single numbers are one matrix, and not one input each."""
    columns = len(flat(feature_cols))
    if columns < 2:
        return True
    inputs = setup.backend.framework.inspected_inputs(setup.spec)
    if inputs.count is None or inputs.count < 2:
        return True
    return not inputs.count <= columns <= (inputs.most or inputs.count)


def validation_form(form: Form, data: object, most_rows: int | None) -> Form:
    """Return how to read validation data: like the training data, whose columns arrays do not have."""
    form = replace(form, argument="validation_data", labels=None, weights=None, most_rows=most_rows)
    return form if adapt(data).takes_columns else replace(form, feature_cols=None, label_cols=None)


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


def reading_ranks(setup: Setup) -> int:
    """Return how many ranks read rows: the workers, or the one process that holds all of them."""
    return min(setup.workers, setup.topology.ranks)
