"""RDDs of Spark: records that are rows, as arrays, pairs of features and labels, or BigDL's Sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import DataError
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.shards import ShardsAdapter
from orca.shards.records import records_of
from orca.shards.tree import Tree, tree_map
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class RDDAdapter(Adapter):
    """An RDD with one row per record; predictions are an RDD of arrays."""

    takes_columns = False

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__name__ == "RDD" and base.__module__.partition(".")[0] == "pyspark" for base in type(data).__mro__
        )

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        return ShardsAdapter(self._rows(form.need_labels)).shards(form, engine, parts)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        rows = self.data.take(count)
        if not rows:
            raise DataError("The RDD has no records.")
        features = [_entries(row, False)["x"] for row in rows]
        return tree_map(lambda *values: np.stack(values), *features)

    def predict(self, call: Prediction) -> Any:
        shards = ShardsAdapter(self._rows(False)).predict(call)
        return records_of(shards.transform_shard(_outputs), "prediction")

    def _rows(self, labelled: bool) -> XShards:
        return XShards.from_rdd(self.data.map(lambda record: _entries(record, labelled)))


def _outputs(shard: Any) -> dict[str, Any]:
    return {name: value for name, value in shard.items() if name not in ("x", "y", "w")}


def _entries(record: Any, labelled: bool) -> dict[str, Any]:
    """Return a record as {"x", "y"}."""
    if hasattr(record, "features") and hasattr(record, "labels"):
        features, labels = _tensors(record.features), _tensors(record.labels)
    elif isinstance(record, tuple) and len(record) == 2:
        features, labels = record
    else:
        features, labels = record, None
    row = {"x": tree_map(np.asarray, features)}
    if labelled:
        if labels is None:
            raise DataError("The records of the RDD have no labels: expected Sample, or pairs (features, label).")
        row["y"] = tree_map(np.asarray, labels)
    return row


def _tensors(tensors: Any) -> Any:
    """Return the arrays of one tensor or of several."""
    arrays = [tensor.to_ndarray() for tensor in tensors]
    return (arrays[0] if len(arrays) == 1 else arrays) if arrays else None
