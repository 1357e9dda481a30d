"""Ray Datasets: blocks stay in Ray's object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.shards.xshards import XShards
from orca.tensorframes.cells import Column, Shape
from orca.tensorframes.frames.base import Frame
from orca.tensorframes.frames.shards import ShardsFrame
from orca.tensorframes.steps import MapStep, ReduceStep


class RayFrame(Frame):
    """A Ray Dataset; results are a new Dataset."""

    _tables: ShardsFrame | None = None

    @staticmethod
    def accepts(data: object) -> bool:
        return any(base.__module__.startswith("ray.data") and base.__name__ == "Dataset" for base in type(data).__mro__)

    def _blocks(self) -> ShardsFrame:
        if self._tables is None:
            self._tables = ShardsFrame(XShards.from_ray_dataset(self.data, as_arrow=True))
        return self._tables

    def columns(self) -> dict[str, Column]:
        return self._blocks().columns()

    def map(self, step: MapStep) -> Any:
        return self._blocks().map(step).to_ray_dataset()

    def reduce(self, step: ReduceStep) -> list[Any]:
        return self._blocks().reduce(step)

    def aggregate(self, step: ReduceStep) -> Any:
        return self._blocks().aggregate(step).to_ray_dataset()

    def shapes(self) -> dict[str, Shape]:
        return self._blocks().shapes()

    def with_shapes(self, shapes: Mapping[str, Shape]) -> Any:
        return self._blocks().with_shapes(shapes).to_ray_dataset()
