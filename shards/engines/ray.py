"""The Ray engine: shards in Ray's object store, work as Ray tasks, which Ray retries if a worker or node is lost."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from orca.core.pickling import pickled
from orca.errors import TransformError
from orca.shards.engines.base import Engine, Join, Result, Shard, Split, Step
from orca.shards.transform_errors import step_error
from orca.shards.tree import length_of

_RETRIES = 3


@dataclass(frozen=True)
class Failed:
    """What a task returns if its function raises: Ray would print an error that nobody fetches from the store."""

    error: TransformError
    worker_traceback: str


def _unless_failed(value: Any) -> Any:
    """Return what a task has computed, or raise what it raised."""
    if isinstance(value, Failed):
        raise value.error from RuntimeError(f"on a Ray worker:\n{value.worker_traceback}")
    return value


def _tried(work: Callable[[], Any], index: int, inputs: Sequence[Any]) -> Any:
    """Return the result of `work`; if it, or what made one of its inputs, has failed, return that instead."""
    for one in inputs:
        if isinstance(one, Failed):
            return one
    try:
        return work()
    except Exception as error:
        failure = error if isinstance(error, TransformError) else step_error(index, error)
        return Failed(failure, traceback.format_exc())


@dataclass(frozen=True)
class RayShard:
    """A shard in the object store and its number of rows: a reference, the number, or None.

    None means not counted yet: that takes a task, and many uses do not need it.
    """

    ref: Any
    row_ref: Any = None

    @property
    def rows(self) -> int:
        return row_counts([self])[0]

    def counted(self) -> Any:
        """Return the number of rows, or a reference to it."""
        import ray

        if self.row_ref is not None:
            return self.row_ref
        return ray.remote(_count).options(num_cpus=0, max_retries=_RETRIES).remote(self.ref)

    def load(self) -> Shard:
        import ray

        return _unless_failed(ray.get(self.ref))


def row_counts(parts: Sequence[RayShard]) -> list[int]:
    """Return the number of rows of each shard, once it is computed."""
    import ray

    counts = [part.counted() for part in parts]
    fetched = iter(ray.get([count for count in counts if not isinstance(count, int)]))
    return [count if isinstance(count, int) else int(_unless_failed(next(fetched))) for count in counts]


def _count(shard: Shard) -> int | Failed:
    return shard if isinstance(shard, Failed) else length_of(shard)


def _step(blob: bytes, index: int, shard: Shard) -> tuple[Shard, int | Failed]:
    result = _tried(lambda: cloudpickle.loads(blob)(index, shard), index, [shard])
    return result, _count(result)


def _split(blob: bytes, index: int, count: int, shard: Shard) -> Any:
    pieces = _tried(lambda: cloudpickle.loads(blob)(index, shard), index, [shard])
    if isinstance(pieces, Failed):
        pieces = [pieces] * count
    return pieces[0] if count == 1 else tuple(pieces)


def _join(blob: bytes, index: int, *pieces: Shard) -> tuple[Shard, int | Failed]:
    result = _tried(lambda: cloudpickle.loads(blob)(index, list(pieces)), index, pieces)
    return result, _count(result)


def _pair(left: Shard, right: Shard) -> tuple[Shard, int | Failed]:
    result = _tried(lambda: (left, right), 0, [left, right])
    return result, _count(result)


def _call(blob: bytes, shard: Shard) -> Any:
    return shard if isinstance(shard, Failed) else cloudpickle.loads(blob)(shard)


class RayEngine(Engine):
    """The engine of the Ray runtime."""

    name = "ray"
    task_threads = 1

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest

    def put(self, shards: Sequence[Shard]) -> list[RayShard]:
        import ray

        return [RayShard(ray.put(shard), length_of(shard)) for shard in shards]

    def map(self, parts: list[RayShard], step: Step) -> list[RayShard]:
        task, blob = self._task(_step, 2), self._ship(step)
        return [RayShard(*task.remote(blob, index, part.ref)) for index, part in enumerate(parts)]

    def zip(self, left: list[RayShard], right: list[RayShard]) -> list[RayShard]:
        task = self._task(_pair, 2)
        return [RayShard(*task.remote(one.ref, two.ref)) for one, two in zip(left, right, strict=True)]

    def shuffle(self, parts: list[RayShard], split: Split, join: Join, count: int) -> list[RayShard]:
        splitting, blob = self._task(_split, count), self._ship(split)
        pieces = [splitting.remote(blob, index, count, part.ref) for index, part in enumerate(parts)]
        columns = [pieces] if count == 1 else list(zip(*pieces, strict=True))
        joining, blob = self._task(_join, 2), self._ship(join)
        return [RayShard(*joining.remote(blob, index, *column)) for index, column in enumerate(columns)]

    def gather(self, parts: list[RayShard]) -> list[Shard]:
        import ray

        return [_unless_failed(shard) for shard in ray.get([part.ref for part in parts])]

    def take(self, parts: list[RayShard], count: int) -> list[Shard]:
        return self.gather(parts[:count])

    def inspect(self, parts: list[RayShard], fn: Callable[[Shard], Result]) -> Result:
        import ray

        task = ray.remote(_call).options(num_cpus=0, max_retries=_RETRIES)
        result: Result = _unless_failed(ray.get(task.remote(pickled(fn, "fn"), parts[0].ref)))
        return result

    def rows(self, parts: list[RayShard]) -> list[int]:
        return row_counts(parts)

    def count(self, parts: list[RayShard]) -> int:
        return len(parts)

    def handles(self, parts: list[RayShard]) -> list[RayShard]:
        # Ranks open only the shards whose rows they need, so they must know how many rows each has.
        return [RayShard(part.ref, rows) for part, rows in zip(parts, self.rows(parts), strict=True)]

    def free(self, parts: list[RayShard]) -> None:
        parts.clear()

    def _task(self, function: Callable[..., Any], returns: int) -> Any:
        import ray

        # An idle gang may still hold the CPUs that these tasks need.
        self._rest()
        return ray.remote(function).options(num_returns=returns, num_cpus=1, max_retries=_RETRIES)

    @staticmethod
    def _ship(function: Callable[..., Any]) -> Any:
        import ray

        # Pickled once and shared by all tasks; a closure may carry a whole model.
        return ray.put(pickled(function, "fn"))
