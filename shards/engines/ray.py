"""Shards as objects of Ray's store; maps run as Ray tasks, which Ray repeats if a node is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from orca.shards.engines.base import Engine
from orca.shards.tree import row_count


@dataclass(frozen=True)
class RayShard:
    """A reference to a shard in the object store, and one to its number of rows (or the number itself)."""

    ref: Any
    row_ref: Any

    @property
    def rows(self) -> int:
        import ray

        return self.row_ref if isinstance(self.row_ref, int) else int(ray.get(self.row_ref))

    def load(self) -> Any:
        import ray

        return ray.get(self.ref)


def _apply(blob: bytes, shard: Any) -> tuple[Any, int]:
    result = cloudpickle.loads(blob)(shard)
    return result, row_count(result)


def _call(blob: bytes, shard: Any) -> Any:
    return cloudpickle.loads(blob)(shard)


class RayEngine(Engine):
    """The engine of the Ray runtime."""

    name = "ray"

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest

    def put(self, shards: Sequence[Any]) -> list[RayShard]:
        import ray

        return [RayShard(ray.put(shard), row_count(shard)) for shard in shards]

    def map(self, parts: list[RayShard], fn: Callable[[Any], Any]) -> list[RayShard]:
        import ray

        # An idle gang may still hold the CPUs that these tasks need.
        self._rest()
        # Pickled once and shared by all tasks; a closure may carry a whole model.
        blob = ray.put(cloudpickle.dumps(fn))
        task = ray.remote(_apply).options(num_returns=2, num_cpus=1, max_retries=3)
        return [RayShard(*task.remote(blob, part.ref)) for part in parts]

    def gather(self, parts: list[RayShard]) -> list[Any]:
        import ray

        return list(ray.get([part.ref for part in parts]))

    def first(self, parts: list[RayShard]) -> Any:
        return parts[0].load()

    def inspect(self, parts: list[RayShard], fn: Callable[[Any], Any]) -> Any:
        import ray

        blob = cloudpickle.dumps(fn)
        task = ray.remote(_call).options(num_cpus=0, max_retries=3)
        return ray.get(task.remote(blob, parts[0].ref))

    def rows(self, parts: list[RayShard]) -> list[int]:
        import ray

        unknown = [part.row_ref for part in parts if not isinstance(part.row_ref, int)]
        told = iter(ray.get(unknown))
        return [part.row_ref if isinstance(part.row_ref, int) else int(next(told)) for part in parts]

    def count(self, parts: list[RayShard]) -> int:
        return len(parts)

    def free(self, parts: list[RayShard]) -> None:
        parts.clear()
