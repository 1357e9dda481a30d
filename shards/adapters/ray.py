"""Ray Datasets: blocks stay in Ray's object store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orca.shards.adapters.arrays import first_rows
from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.checking import refuse
from orca.shards.adapters.selection import FirstRows, choose, needed
from orca.shards.column_types import Problems, problems, schema_problems
from orca.shards.tree import Tree
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class RayAdapter(Adapter):
    """A Ray Dataset; predictions are columns of a new Dataset."""

    _blocks: XShards | None = None

    @staticmethod
    def accepts(data: object) -> bool:
        return any(base.__module__.startswith("ray.data") and base.__name__ == "Dataset" for base in type(data).__mro__)

    def columns(self) -> list[str]:
        return list(self.data.columns() or [])

    def problems(self, names: Iterable[str]) -> Problems:
        schema, wanted = self.data.schema(), set(names)
        if schema is None:
            return {}
        types = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if name in wanted}
        unclear = [name for name, kind in types.items() if kind is object or str(kind) == "object"]
        if unclear:
            # Blocks of pandas do not tell what their objects are; one row does.
            first = self.data.select_columns(unclear).limit(1).to_pandas()
            return {**schema_problems(types), **problems(first)}
        return schema_problems(types)

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        chosen = choose(self.columns(), form)
        refuse(self.problems(needed(chosen)), chosen)
        shards = XShards.from_ray_dataset(self.data.select_columns(needed(chosen)), as_arrow=True)
        features = shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
        return features.to_engine(engine)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        return first_rows(self._tables(), FirstRows(count, form.feature_cols, form.together))

    def predict(self, call: Prediction) -> Any:
        return self._tables().transform_shard(call.step).to_ray_dataset()

    def threads(self, place: Place) -> int | None:
        return 1

    def _tables(self) -> XShards:
        if self._blocks is None:
            self._blocks = XShards.from_ray_dataset(self.data, as_arrow=True)
        return self._blocks
