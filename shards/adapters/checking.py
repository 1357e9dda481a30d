"""What the driver checks of a call's rows: columns by their types, arrays piece by piece, in the order of the rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.base import Form
from orca.shards.checks import check_any_weight, check_array, check_range, check_weights
from orca.shards.column_types import Problems
from orca.shards.columns import flat
from orca.shards.tree import Tree, leaves, row_count

_log = logging.getLogger("orca")


def refuse(found: Problems, form: Form) -> None:
    """Raise if the form names a column that its model cannot take."""
    named = [(name, form.checks.other_kinds) for name in flat(form.feature_cols)]
    named += [(name, "") for name in (*flat(form.label_cols), *flat(form.weight_col))]
    for name, kinds in named:
        problem = found.get(name)
        if problem is not None and problem.kind not in (kinds or " "):
            raise DataError(f"{form.argument}=: {problem.message}")


class RowChecker:
    """Checks the rows of one call. Pieces come in the order of their rows, so that messages name the right row."""

    def __init__(self, form: Form) -> None:
        self._form, self._checks = form, form.checks
        self._row = 0
        self._warned = False
        self._weighted: bool | None = None
        self._types: Mapping[str, str] | None = None

    def __call__(self, tree: Tree) -> Tree:
        """Return the piece if nothing is wrong with it."""
        rows = row_count(tree)
        self._check_arrays(tree)
        if rows and not self._row and self._checks.rows is not None:
            self._checks.rows(tree)
        self._check_ranges(tree)
        if tree.get("w") is not None:
            check_weights(tree["w"], self._row)
            self._weighted = bool(self._weighted) or bool(np.any(tree["w"]))
        self._row += rows
        return tree

    def _check_ranges(self, tree: Tree) -> None:
        """Check that the types of the model can hold the values."""
        if self._types is None:
            self._types = {} if self._checks.types is None else self._checks.types(tree)
        for name, leaf in leaves(tree) if self._types else ():
            if name in self._types:
                part, _, inner = name.partition(".")
                columns = self._form.feature_cols if part == "x" else self._form.label_cols
                check_range(leaf, self._types[name], self._name(part, inner, columns), self._row)

    def check_form(self, blank: Tree) -> None:
        """Check arrays that have the types and shapes of the rows, but no row."""
        self._check_arrays(blank)
        if self._checks.rows is not None:
            self._checks.rows(blank)

    def _check_arrays(self, tree: Tree) -> None:
        form, checks = self._form, self._checks
        for name, leaf in leaves(tree["x"]):
            check_array(leaf, self._name("x", name, form.feature_cols), checks.other_kinds, self._row)
        for name, leaf in leaves(tree["y"]) if "y" in tree else ():
            label = self._name("y", name, form.label_cols)
            check_array(leaf, label, "", self._row)
            rules = checks.labels.get(name)
            if rules is not None:
                rules.check(leaf, label, self._row)
                self._warn(rules.warning(leaf, label, self._row))

    def finish(self) -> None:
        """Raise what only all rows together can tell."""
        if self._weighted is False and self._row:
            check_any_weight(np.zeros(1))

    @property
    def rows(self) -> int:
        """Rows checked so far."""
        return self._row

    def _warn(self, warning: str) -> None:
        if warning and not self._warned:
            self._warned = True
            _log.warning("%s", warning)

    def _name(self, part: str, name: str, columns: Any) -> str:
        """Return what the user calls an array: a column, or a part of an argument."""
        form = self._form
        names = flat(columns)
        if len(names) == 1:
            return f"Column {names[0]!r} of {form.argument}="
        if name.isdigit() and columns is not None and len(names) == len(columns) > int(name):
            return f"Column {names[int(name)]!r} of {form.argument}="
        dotted = f"{part}.{name}" if name else part
        return f"{dotted} of {form.argument}="
