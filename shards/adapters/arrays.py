"""Arrays: ndarrays and tensors, alone, in pairs, or nested in dicts, lists and tuples."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.checking import RowChecker
from orca.shards.adapters.selection import FirstRows, choose, describe_data, to_arrays
from orca.shards.checks import check_weights, short
from orca.shards.columns import assemble, series_to_numpy
from orca.shards.tree import (
    Tree,
    as_arrays,
    cut_evenly,
    join_rows,
    kind_of,
    leaves,
    row_count,
    size_in_bytes,
    take_rows,
    tree_map,
)
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class RowsAdapter(Adapter):
    """Base of data without named columns: predictions come back as arrays, in the order of the rows."""

    takes_columns = False
    _stored: XShards | None = None

    def _on_engine(self, form: Form, place: Place) -> XShards:
        if self._stored is None:
            shards = self.shards(form, place.engine, place.parts)
            assert isinstance(shards, XShards)
            self._stored = shards
        return self._stored

    def head(self, count: int, form: Form, place: Place) -> Tree:
        return first_rows(self._on_engine(form, place), FirstRows(count))

    def predict(self, call: Prediction) -> Any:
        predicted = self._on_engine(call.form, call.place).transform_shard(call.step.outputs)
        return join_rows([part["output"] for part in predicted.collect()])


class ArraysAdapter(RowsAdapter):
    """Arrays of this process."""

    takes_labels = True
    takes_weights = True
    _features: Tree | None = None

    @staticmethod
    def accepts(data: object) -> bool:
        """Accept anything: what is no array is reported by name when it is read."""
        return True

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        if form.feature_cols is not None and isinstance(self.data, dict):
            chosen = choose([str(key) for key in self.data], form)
            return store(to_arrays(self.data, chosen), engine, chosen, parts)
        return store(to_tree(self.data, form), engine, form, parts)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        if place.in_process:
            return FirstRows(count)(self.all_features(form, place))
        return super().head(count, form, place)

    def all_features(self, form: Form, place: Place) -> Tree | None:
        if place.in_process and self._features is None:
            self._features = RowChecker(form)(to_tree(self.data, form))["x"]
        return self._features

    def predict(self, call: Prediction) -> Any:
        features = self.all_features(call.form, call.place)
        return super().predict(call) if features is None else call.step.run(features)

    def threads(self, place: Place) -> int | None:
        return place.cores if place.in_process else super().threads(place)


def first_rows(shards: XShards, take: FirstRows) -> Tree:
    """Bring the features of the first rows of shards into this process."""
    parts: list[Tree] = []
    rows = 0
    for part in shards.walk(take):
        parts.append(part)
        rows += row_count(part)
        if rows >= take.count:
            break
    return take_rows(join_rows(parts), 0, take.count)


def store(tree: Tree, engine: Engine, form: Form, parts: int) -> XShards:
    """Check rows of this process and store them on an engine, in at least `parts` shards of a suitable size."""
    rows = row_count(tree)
    if rows == 0 and form.need_labels:
        raise DataError(f"{form.argument}= has no rows.")
    checker = RowChecker(form)
    checker(tree)
    checker.finish()
    count = max(1, min(max(parts, -(-size_in_bytes(tree) // engine.shard_bytes)), rows))
    return XShards(engine, engine.put(cut_evenly(tree, count)))


def to_tree(data: object, form: Form) -> dict[str, Tree]:
    """Bring arrays into the form {"x": …, "y": …}: fit(x, y), (x, y) and dicts are understood."""
    argument = form.argument
    if isinstance(data, str | os.PathLike):
        raise DataError(f"{argument}={data!r} is a path. Read it first, for example with orca.data.read_csv.")
    if isinstance(form.weights, str):
        raise DataError(f"sample_weight={form.weights!r} names a column, but {argument}= has none; give an array.")
    tree = _parts(data, form)
    if form.need_labels and "y" not in tree:
        raise DataError(
            f'{argument}= has no labels. Give arrays as fit(x, y), as a tuple (x, y) or as {{"x": …, "y": …}}; '
            f"received {describe_data(data)}."
        )
    if form.weights is not None:
        tree["w"] = form.weights
    for name, entry in tree.items():
        if hasattr(entry, "tocsr"):  # some kinds of sparse matrices are dicts as well
            raise DataError(
                f"{name} of {argument}= is a sparse {type(entry).__name__}; sparse input is not supported. "
                "Make it dense with toarray()."
            )
    arrays: dict[str, Tree] = {
        name: tree_map(lambda leaf, name=name: _plain(leaf, name), as_arrays(entry, f"{name} of {argument}="))
        for name, entry in tree.items()
    }
    if "w" in arrays and not np.ndim(arrays["w"]):
        check_weights(arrays["w"])
    _check_leaves(arrays, data, argument)
    row_count(arrays)
    return arrays


def _plain(leaf: Any, name: str) -> Any:
    """Return a leaf as an array: that of a column, or the matrix of a frame's columns."""
    kind = kind_of(leaf)
    if kind == "series":
        return series_to_numpy(leaf, str(name if leaf.name is None else leaf.name))
    if kind in ("frame", "table"):
        return assemble(leaf, [str(key) for key in (leaf.columns if kind == "frame" else leaf.column_names)], name)
    return leaf


def _parts(data: object, form: Form) -> dict[str, Tree]:
    """Take data apart into features, labels and weights."""
    if isinstance(data, dict) and "x" in data:
        if form.labels is not None:
            raise DataError(f'Labels were given twice: as y= and as the entry "y" of {form.argument}=.')
        return {key: data[key] for key in ("x", "y", "w") if key in data}
    if form.labels is not None:
        return {"x": data, "y": form.labels}
    flat = flat_parts(data, form)
    if flat is not None:
        return flat
    if form.pairs and isinstance(data, tuple | list) and len(data) == 2:
        return {"x": data[0], "y": data[1]}
    if form.pairs and form.triples and isinstance(data, tuple) and len(data) == 3:
        return {"x": data[0], "y": data[1], "w": data[2]}
    return {"x": data}


def flat_parts(data: object, form: Form) -> dict[str, Tree] | None:
    """Take a flat tuple of arrays apart, inputs before labels, if their numbers are known; else return None."""
    if form.flat is None or not isinstance(data, tuple | list):
        return None
    inputs, labels = form.flat
    if any(isinstance(part, dict | list | tuple) for part in data) or inputs + labels < 2:
        return None
    if len(data) not in (inputs + labels, inputs):
        return None
    if len(data) == inputs and (form.need_labels or inputs == 1):
        return None
    parts: dict[str, Tree] = {"x": tuple(data[:inputs]) if inputs > 1 else data[0]}
    if len(data) > inputs:
        parts["y"] = tuple(data[inputs:]) if labels > 1 else data[inputs]
    return parts


def _check_leaves(arrays: dict[str, Tree], data: object, argument: str) -> None:
    for name, entry in arrays.items():
        if not any(True for _ in leaves(entry)):
            raise DataError(f"{name} of {argument}= is {short(entry)}, which holds no array. Give one, with its rows.")
    leaf: np.ndarray[Any, Any]
    for name, leaf in leaves(arrays):
        if leaf.ndim > 1 and 0 in leaf.shape[1:] and leaf.shape[0]:
            raise DataError(
                f"{name} of {argument}= has shape {leaf.shape}: 0 feature(s) in each row; at least one is required."
            )
        if leaf.dtype == object:
            first = f", such as {short(leaf.reshape(-1)[0])} in row 0" if leaf.size else ""
            raise DataError(
                f"{name} of {argument}= has dtype object (rows of different lengths, or not numbers{first}); received "
                f"{describe_data(data)}. Make it an array of numbers with one shape per row."
            )
