"""Which columns of a table are features, labels and weights; missing ones are reported before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from orca.errors import ColumnError, listed, suggest
from orca.shards.adapters.base import Form
from orca.shards.columns import Columns, assemble, check_single, features_and_labels, flat
from orca.shards.tree import Tree, as_arrays, kind_of, take_rows, tree_map


def choose(columns: list[str], form: Form) -> Form:
    """Fill in the default columns "features" and "label", and check that all columns exist."""
    features, labels = form.feature_cols, form.label_cols
    if features is None and "features" in columns:
        features = ["features"]
    if labels is None and "label" in columns and form.need_labels:
        labels = ["label"]
    if features is None or (form.need_labels and labels is None):
        argument, default = ("feature_cols", "features") if features is None else ("label_cols", "label")
        raise ColumnError(
            f"{form.argument}= has named columns: choose some with {argument}=. Without it the column {default!r} is "
            f"used, which does not exist. Columns: {listed(columns)}."
        )
    chosen = replace(form, feature_cols=features, label_cols=labels)
    check_columns(chosen, columns)
    return chosen


def check_columns(form: Form, columns: Sequence[str]) -> None:
    """Raise if a column that the form names is missing."""
    named = (("feature_cols", form.feature_cols), ("label_cols", form.label_cols), ("sample_weight", form.weight_col))
    for argument, names in named:
        for name in flat(names):
            if name not in columns:
                raise ColumnError(
                    f"{argument}={name!r} is not in {form.argument}=. Columns: {listed(columns)}."
                    + suggest(name, columns)
                )
            check_single(name, columns, argument, f"{form.argument}=")


def needed(form: Form) -> list[str]:
    """Return the columns that a chosen form reads, each once."""
    return list(dict.fromkeys([*flat(form.feature_cols), *flat(form.label_cols), *flat(form.weight_col)]))


def to_arrays(table: Tree, form: Form) -> Tree:
    """Return the chosen columns of a frame, a table or a dict as {"x", "y", "w"}."""
    arrays = features_and_labels(table, form.feature_cols, form.label_cols, form.together, form.weight_col)
    if form.weights is not None and form.weight_col is None:
        arrays["w"] = np.asarray(as_arrays(form.weights, "sample_weight="))
    return arrays


def column_names(shard: Tree) -> list[str] | None:
    """Return the columns of a frame or table; None for anything else."""
    kind = kind_of(shard)
    if kind not in ("frame", "table"):
        return None
    return [str(name) for name in (shard.column_names if kind == "table" else shard.columns)]


def describe_data(data: object) -> str:
    """Describe data in a few words, for messages."""
    if isinstance(data, dict):
        return f"a dict with the keys {listed(sorted(map(str, data)))}"
    if isinstance(data, tuple | list):
        return f"a {type(data).__name__} of {len(data)}"
    shape = getattr(data, "shape", None)
    return f"a {type(data).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


@dataclass(frozen=True)
class FirstRows:
    """Takes the features of a shard's first rows, in memory of their own."""

    count: int
    feature_cols: Columns = None
    together: bool = True

    def __call__(self, shard: Tree) -> Tree:
        if self.feature_cols is None:
            return tree_map(np.array, take_rows(features_of(shard), 0, self.count))
        if kind_of(shard) in ("frame", "table"):
            shard = take_rows(shard, 0, self.count)
        features = assemble(shard, self.feature_cols, "feature_cols", self.together)
        return tree_map(np.array, take_rows(features, 0, self.count))


def features_of(shard: Tree) -> Tree:
    """Return the model's inputs in a shard: the entry "x" of a dict that has one, else all of it."""
    return shard["x"] if isinstance(shard, dict) and "x" in shard else shard
