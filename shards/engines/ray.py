"""The Ray engine: shards in Ray's object store, work as Ray tasks, which Ray retries if a worker or node is lost."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from orca.core.pickling import pickled
from orca.errors import TransformError
from orca.launch.processes import wait_until
from orca.shards.engines.base import Engine, Join, Result, Shard, Split, Step
from orca.shards.transform_errors import step_error
from orca.shards.tree import length_of, size_in_bytes, take_rows

_RETRIES = 3
_LOCATE_MILLISECONDS = 10_000
_SMALL_BYTES, _MANY = 100 << 10, 10_000
_RETURN_SECONDS = 1.0


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
    holds_rows: bool = True
    """Whether it may be large. A list of paths, for example, only says which rows to read."""

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

    def part(self, start: int, stop: int, node: str) -> RayShard | RayRows:
        """Return some rows for a node: a view if the shard is stored there, else a copy of these rows alone."""
        import ray
        from ray.experimental import get_object_locations
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = get_object_locations([self.ref], _LOCATE_MILLISECONDS).get(self.ref, {}).get("node_ids", [])
        if node in nodes or not nodes:  # small shards are not in the store, but with their owner
            return RayRows(self.ref, start, stop)
        where = NodeAffinitySchedulingStrategy(nodes[0], soft=True)
        task = ray.remote(_cut).options(num_cpus=0, max_retries=_RETRIES, scheduling_strategy=where)
        return RayShard(task.remote(self.ref, start, stop), stop - start)


@dataclass(frozen=True)
class RayRows:
    """Consecutive rows of a shard in the object store."""

    ref: Any
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def load(self) -> Shard:
        import ray

        return take_rows(_unless_failed(ray.get(self.ref)), self.start, self.stop)


def _cut(shard: Shard, start: int, stop: int) -> Shard:
    return shard if isinstance(shard, Failed) else take_rows(shard, start, stop)


def _may_be_large(shard: Shard) -> bool:
    """Whether a shard is more than a few paths or numbers; a long list counts as large without a look at its items."""
    if isinstance(shard, list | tuple) and len(shard) > _MANY:
        return True
    return size_in_bytes(shard) > _SMALL_BYTES


def _consecutive_nodes(count: int) -> list[str | None]:
    """Return a node for each of some shards: consecutive shards on one node, as many as it has a share of the CPUs.

    None leaves the choice to Ray: while others use the cluster, a task must not wait for a certain node.
    """
    import ray

    def is_idle() -> bool:
        return bool(ray.available_resources().get("CPU", 0.0) >= ray.cluster_resources().get("CPU", 0.0))

    cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]}
    slots = [node for node in sorted(cpus) for _ in range(int(cpus[node]))]
    # Ray needs a moment to return the CPUs of an idle gang.
    if len(set(slots)) < 2 or not wait_until(is_idle, _RETURN_SECONDS, step=0.05):
        return [None] * count
    return [slots[index * len(slots) // count] for index in range(count)]


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
    shard_bytes = 64 << 20  # a shard with rows for two hosts is cut, which copies its rows

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest

    def put(self, shards: Sequence[Shard]) -> list[RayShard]:
        import ray

        return [RayShard(ray.put(shard), length_of(shard), _may_be_large(shard)) for shard in shards]

    def map(self, parts: list[RayShard], step: Step) -> list[RayShard]:
        blob = self._ship(step)
        self._rest()
        # Rows are best computed where they are. If there are none yet, consecutive shards go to one node: ranks need
        # consecutive rows.
        nodes = [None] * len(parts) if any(part.holds_rows for part in parts) else _consecutive_nodes(len(parts))
        tasks = {node: self._task(_step, 2, node) for node in dict.fromkeys(nodes)}
        return [
            RayShard(*tasks[node].remote(blob, index, part.ref))
            for index, (part, node) in enumerate(zip(parts, nodes, strict=True))
        ]

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

    def _task(self, function: Callable[..., Any], returns: int, node: str | None = None) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = "DEFAULT" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        # An idle gang may still hold the CPUs that these tasks need.
        self._rest()
        return ray.remote(function).options(
            num_returns=returns, num_cpus=1, max_retries=_RETRIES, scheduling_strategy=where
        )

    @staticmethod
    def _ship(function: Callable[..., Any]) -> Any:
        import ray

        # Pickled once and shared by all tasks; a closure may carry a whole model.
        return ray.put(pickled(function, "fn"))
