"""pandas DataFrames and Arrow tables: rows of this process with named columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.shards.adapters.arrays import store
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.selection import FirstRows, choose, column_names, to_arrays
from orca.shards.tree import Tree, kind_of, row_count
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class TableAdapter(Adapter):
    """An Arrow table."""

    takes_weights = True

    @staticmethod
    def accepts(data: object) -> bool:
        return kind_of(data) == "table"

    def columns(self) -> list[str]:
        return column_names(self.data) or []

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        return store(to_arrays(self.data, choose(self.columns(), form)), engine, form, parts)

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
        frame = self.data
        if not all(isinstance(name, str) for name in frame.columns):
            frame = frame.rename(columns=str)
        columns = self.columns()
        if form.labels is None:
            return store(to_arrays(frame, choose(columns, form)), engine, form, parts)
        features = form.feature_cols or [name for name in columns if name != form.weight_col]
        arrays = to_arrays(frame, replace(form, feature_cols=features, label_cols=None))
        return store({**arrays, "y": np.asarray(form.labels)}, engine, form, parts)
