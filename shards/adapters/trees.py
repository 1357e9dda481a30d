"""Batches of a data set as rows {"x", "y"} on a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from orca.shards.adapters.arrays import to_tree
from orca.shards.adapters.base import Checks, Form
from orca.shards.adapters.batches import labelled
from orca.shards.adapters.checking import RowChecker
from orca.shards.tree import Tree


def rank_form(form: Form) -> Form:
    """Return how a rank reads data. The model's own checks run where the model is."""
    return replace(form, checks=Checks(form.checks.other_kinds))


class Trees:
    """Turns the batches of a data set into rows; the labels are part of the batches."""

    def __init__(self, form: Form) -> None:
        self._form = replace(rank_form(form), labels=None, weights=None)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Tree]:
        """Yield the rows of one batch after another."""
        check = RowChecker(self._form)
        try:
            for batch in batches:
                yield check(to_tree(labelled(batch, self._form), self._form))
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
