"""XShards: rows that are stored on an engine already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orca.errors import DataError, listed
from orca.shards.adapters.arrays import first_rows
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.checking import RowChecker, refuse
from orca.shards.adapters.selection import FirstRows, check_columns, choose, column_names, describe_data
from orca.shards.column_types import Problem, Problems, problems
from orca.shards.tree import Tree, as_arrays, kind_of, leaves, row_count, take_rows, tree_map
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


@dataclass(frozen=True)
class Borrowed:
    """Shards derived from the user's own, which stay when the call ends."""

    shards: XShards
    owner: XShards

    def handles(self) -> Any:
        return self.shards.handles()

    def release(self) -> None:
        if not self.shards.shares_parts(self.owner):
            self.shards.free()


class ShardsAdapter(Adapter):
    """The user's XShards: of dicts {"x", "y"}, or of frames and tables."""

    named_entries = True
    _looked: _Look | None = None

    @staticmethod
    def accepts(data: object) -> bool:
        return isinstance(data, XShards)

    def columns(self) -> list[str] | None:
        first = self._first()
        return first.columns if first.kind in ("frame", "table") else None

    def problems(self, names: Iterable[str]) -> Problems:
        return self._first().problems

    def _first(self) -> _Look:
        if self._looked is None:
            self._looked = next(self.data.walk(_look))
        return self._looked

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        return Borrowed(_features(self.data, form).to_engine(engine), self.data)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        return first_rows(self._rows(form, place), FirstRows(count, form.feature_cols, form.together))

    def predict(self, call: Prediction) -> XShards:
        return self._rows(call.form, call.place).transform_shard(call.step)

    def threads(self, place: Place) -> int | None:
        threads: int | None = self.data.engine.task_threads
        return threads

    def _rows(self, form: Form, place: Place) -> XShards:
        """Shards with columns stay where they are; others move to the context's engine."""
        shards: XShards = self.data
        return shards if form.feature_cols is not None else shards.to_engine(place.engine)


def _features(shards: XShards, form: Form) -> XShards:
    """Bring shards into the form {"x", "y"}, after a look at the first one where it is stored."""
    keys, kind, description, found, blank = shards.inspect(_look)
    if kind in ("frame", "table") or form.feature_cols is not None:
        chosen = choose(keys or [], form)
        refuse(found, chosen)
        return shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
    if keys is None or "x" not in keys:
        if not form.need_labels:
            return shards
        raise DataError(
            f'{form.argument}= has shards of {description}; expected dicts {{"x": …, "y": …}}. '
            "Use transform_shard to bring them into that form, or give feature_cols= and label_cols=."
        )
    if form.need_labels and "y" not in keys:
        raise DataError(
            f'The shards of {form.argument}= have no labels: entries {listed(sorted(keys))}, expected "x" and "y".'
        )
    if blank is not None:
        RowChecker(form).check_form(blank)
    if form.weight_col is not None:
        check_columns(replace(form, feature_cols=None, label_cols=None), keys)
        return shards.transform_shard(_weighted, form.weight_col)
    return shards


def _weighted(shard: Tree, name: str) -> Tree:
    """Use one entry of a shard as its weights."""
    return {**{key: value for key, value in shard.items() if key in ("x", "y")}, "w": shard[name]}


class _Look(NamedTuple):
    """What the first shard tells about all of them."""

    columns: list[str] | None
    """Its columns or keys."""
    kind: str
    description: str
    problems: dict[str, Problem]
    blank: Tree | None
    """Its features and labels without rows."""


_LOOK_ROWS = 1000


def _look(shard: Tree) -> _Look:
    columns, kind, blank = column_names(shard), kind_of(shard), None
    if columns is None and isinstance(shard, dict):
        columns = [str(key) for key in shard]
        if "x" in columns:
            rows = as_arrays({key: shard[key] for key in ("x", "y", "w") if key in shard})
            row_count(rows)
            if all(kind_of(leaf) == "array" for _, leaf in leaves(rows)):
                blank = tree_map(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), rows)
    found = problems(take_rows(shard, 0, _LOOK_ROWS)) if kind in ("frame", "table") else {}
    return _Look(columns, kind, describe_data(shard), found, blank)
