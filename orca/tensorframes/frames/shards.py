"""XShards of frames on every engine: each shard is computed where it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.context import current
from orca.errors import DataError
from orca.shards.xshards import XShards
from orca.tensorframes.arrow_cells import joined_shapes
from orca.tensorframes.cells import Column, Shape
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.frames.tables import TableFrame, check_shapes, columns_of, table_frame
from orca.tensorframes.steps import MapStep, ReduceStep

_LOOK_ROWS = 1000


class ShardsFrame(Frame):
    """XShards whose shards are pandas or polars DataFrames or Arrow tables. Lazy but for reductions."""

    data: XShards

    @staticmethod
    def accepts(data: object) -> bool:
        return isinstance(data, XShards)

    def columns(self) -> dict[str, Column]:
        found: dict[str, Column] = {}
        # A shard without rows does not show the types of its objects.
        for rows, columns in self.data.walk(_look):
            found = columns if not found or rows else found
            if rows:
                break
        return found

    def map(self, step: MapStep) -> XShards:
        return self.data.transform_shard(_mapped, self._here(step))

    def reduce(self, step: ReduceStep) -> list[Any]:
        partial = self.data.transform_shard(_reduced, self._here(step))
        return [table for tables in partial.collect() for table in tables]

    def aggregate(self, step: ReduceStep) -> XShards:
        step = self._here(step)
        kind = self.data.inspect(_kind)
        # Each shard is reduced first, so that little travels to the shard of a key.
        partial = self.data.transform_shard(_by_key, step, "pandas")
        if self.data.num_partitions() == 1:
            return self.data.transform_shard(_by_key, step, kind)
        return partial.partition_by(list(step.keys)).transform_shard(_by_key, step.again(), kind)

    def _here(self, step: Any) -> Any:
        """Return a step for the processes of the engine; new ones of this machine start with what it imports."""
        if step.bound.modules:
            current().prefer(step.bound.modules)
        return step.on_threads(self.data.engine.task_threads)

    def shapes(self) -> dict[str, Shape]:
        found: dict[str, Shape] = {}
        for rows, shapes in self.data.transform_shard(_shapes).collect():
            if rows or not found:
                found = {name: joined_shapes(found.get(name), shape) for name, shape in shapes.items()}
        return found

    def with_shapes(self, shapes: Mapping[str, Shape]) -> XShards:
        return self.data.transform_shard(_checked, dict(shapes))


def _frame(shard: Any) -> TableFrame:
    frame = table_frame(shard)
    if frame is None:
        raise DataError(
            f"The shards are {type(shard).__name__}s; expected DataFrames or Arrow tables. Use transform_shard first."
        )
    return frame


def _look(shard: Any) -> tuple[int, dict[str, Column]]:
    frame = _frame(shard)
    few = shard.slice(0, _LOOK_ROWS) if hasattr(shard, "slice") else shard.iloc[:_LOOK_ROWS]
    return shard.shape[0], columns_of(type(frame)(few).table().schema)


def _kind(shard: Any) -> str:
    return type(_frame(shard)).__name__


def _mapped(shard: Any, step: MapStep) -> Any:
    return _frame(shard).map(step)


def _reduced(shard: Any, step: ReduceStep) -> list[Any]:
    return _frame(shard).reduce(step)


def _by_key(shard: Any, step: ReduceStep, kind: str) -> Any:
    from orca.tensorframes.frames.tables import PandasFrame

    frame = _frame(shard)
    table = step.by_key(frame.table([*step.keys, *step.columns]))
    return table if kind == "TableFrame" else PandasFrame(None).back(table)


def _shapes(shard: Any) -> tuple[int, dict[str, Shape]]:
    return shard.shape[0], _frame(shard).shapes()


def _checked(shard: Any, shapes: Mapping[str, Shape]) -> Any:
    check_shapes(_frame(shard).table(list(shapes)), shapes)
    return shard
