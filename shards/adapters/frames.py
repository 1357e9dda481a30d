"""pandas DataFrames and Arrow tables: rows of this process with named columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orca.errors import DataError
from orca.shards.adapters.arrays import store
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.checking import refuse
from orca.shards.adapters.selection import FirstRows, check_columns, choose, column_names, needed, to_arrays
from orca.shards.column_types import Problems, problems
from orca.shards.columns import assemble, series_to_numpy
from orca.shards.tree import Tree, as_arrays, kind_of, leaves, row_count
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class TableAdapter(Adapter):
    """An Arrow table."""

    takes_weights = True
    holds_rows = True

    @staticmethod
    def accepts(data: object) -> bool:
        return kind_of(data) == "table"

    def columns(self) -> list[str]:
        return column_names(self.data) or []

    def problems(self, names: Iterable[str]) -> Problems:
        return problems(self.data, names)

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        chosen = choose(self.columns(), form)
        refuse(self.problems(needed(chosen)), chosen)
        return store(to_arrays(self.data, chosen), engine, chosen, parts)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        return FirstRows(count, form.feature_cols, form.together)(self.data)

    def predict(self, call: Prediction) -> Any:
        if call.place.in_process:
            return call.step(self.data)
        parts = max(1, min(call.place.parts, row_count(self.data)))
        return XShards.partition(self.data, parts).transform_shard(call.step).to_numpy()

    def threads(self, place: Place) -> int | None:
        return place.cores if place.in_process else super().threads(place)


class FrameAdapter(TableAdapter):
    """A pandas DataFrame; as in scikit-learn, labels may be given beside it."""

    takes_labels = True

    @staticmethod
    def accepts(data: object) -> bool:
        return kind_of(data) == "frame"

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        if form.labels is None:
            return super().shards(form, engine, parts)
        columns = self.columns()
        features = form.feature_cols or [name for name in columns if name != form.weight_col]
        chosen = replace(form, feature_cols=features, label_cols=None)
        check_columns(chosen, columns)
        refuse(self.problems(needed(chosen)), chosen)
        return store({**to_arrays(self.data, chosen), "y": _labels(form.labels)}, engine, chosen, parts)


def _labels(labels: Any) -> Tree:
    """Return labels that stand beside a frame as arrays."""
    kind = kind_of(labels)
    if kind == "series":
        return series_to_numpy(labels, str("y" if labels.name is None else labels.name))
    if kind == "frame":
        return assemble(labels, [str(name) for name in labels.columns], "y")
    arrays = as_arrays(labels, "y")
    if not any(True for _ in leaves(arrays)):
        raise DataError(f"y={labels!r} holds no array. Give one, with its rows.")
    return arrays
