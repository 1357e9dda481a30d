"""Spark DataFrames: columns cross to Python as Arrow batches, where the partitions are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orca.shards.adapters.base import Adapter, Checks, Feedable, Form, Place, Prediction
from orca.shards.adapters.checking import refuse
from orca.shards.adapters.selection import FirstRows, choose, needed, to_arrays
from orca.shards.column_types import Problems, spark_problems
from orca.shards.columns import flat
from orca.shards.tree import Tree
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine

CHUNK_BYTES = 8 << 20
"""Partitions travel to the ranks in pieces of about this size."""


class SparkAdapter(Adapter):
    """A Spark DataFrame; predictions are columns of a lazy DataFrame."""

    @staticmethod
    def accepts(data: object) -> bool:
        return any(
            base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(data).__mro__
        )

    def columns(self) -> list[str]:
        return list(self.data.columns)

    def problems(self, names: Iterable[str]) -> Problems:
        wanted = set(names)
        fields = [field for field in self.data.schema.fields if field.name in wanted]
        return spark_problems({field.name: field.dataType.simpleString() for field in fields})

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        from orca.shards.engines.spark_frames import pack_frame

        chosen = choose(self.columns(), form)
        refuse(self.problems(needed(chosen)), chosen)
        # The form travels to Spark's tasks; what it checks with is for this process.
        chosen = replace(chosen, checks=Checks())
        if engine.name == "spark":
            # Straight from Arrow to arrays, in pieces, so that no process ever holds a whole partition.
            return pack_frame(self.data, needed(chosen), lambda table: to_arrays(table, chosen), CHUNK_BYTES)
        shards = XShards.from_spark_df(self.data, needed(chosen))
        features = shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
        return features.to_engine(engine)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        from orca.shards.engines.spark_frames import first_rows

        table = first_rows(self.data, _inputs(form), count)
        return FirstRows(count, form.feature_cols, form.together)(table)

    def predict(self, call: Prediction) -> Any:
        from orca.shards.engines.spark_frames import add_columns

        return add_columns(self.data, _inputs(call.form), call.step.tables, call.example())

    def threads(self, place: Place) -> int | None:
        return 1


def _inputs(form: Form) -> list[str]:
    return list(dict.fromkeys(flat(form.feature_cols)))
