"""Ranks as the tasks of one Spark barrier stage, fed with Arrow batches by Spark's own shuffle."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orca.core.machine import host_id
from orca.launch.base import Delivery, Handle, Hello, Launcher, Meeting, Source
from orca.launch.exchange import OpenFile, spool, spool_prefix
from orca.launch.gang import driver_path
from orca.launch.processes import kill, wait_until
from orca.launch.rank import serve

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

_REGISTER_SECONDS = 15.0
_CANCEL_SECONDS = 10.0
_RAISED = re.compile(r"[\w.]*(Error|Exception): (?!An error occurred)")


class Packed(Protocol):
    """What a source's `handles` has to return for this launcher: packed shards that Spark can move."""

    def frame(self, name: str, world: int) -> Any:
        """Return the shards as a DataFrame with the columns target, source, place and shard."""

    @property
    def open_file(self) -> OpenFile:
        """A function that opens a file with one packed shard, on a rank."""


_received: dict[str, Iterator[Any]] = {}
"""In a rank's process: the Arrow batches that Spark feeds to it, by the token of the call."""


class _Stage:
    """The data of one barrier stage; the deliveries of all its sources share it."""

    def __init__(self, token: str, openers: Mapping[str, OpenFile]) -> None:
        self._token, self._openers = token, openers
        self._shards: dict[str, list[Handle]] | None = None

    def shards(self, context: RankContext) -> dict[str, list[Handle]]:
        """Exchange the shards that this rank received with the other ranks, once; return all of them by source."""
        if self._shards is None:
            self._shards = spool(context, _records(_received[self._token]), self._token, self._openers)
        return self._shards


@dataclass(frozen=True)
class _Spooled:
    """The delivery of a source that Spark's shuffle brings to the ranks."""

    stage: _Stage
    name: str

    def open(self, context: RankContext) -> Sequence[Handle]:
        return self.stage.shards(context)[self.name]


def _rank_task(meeting: Meeting, path: list[str], token: str) -> Any:
    """Return the barrier task's body: serve one call as the rank that Spark's partition number says."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        # Imported by name: this function is pickled by value, and would take a copy of the module's variables along.
        from orca.launch.spark import serve_stage

        return serve_stage(meeting, path, token, batches)

    return run


def serve_stage(meeting: Meeting, path: list[str], token: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Serve one call in a barrier task; its deliveries find the task's Arrow batches under the token."""
    import pyarrow as pa
    from pyspark import BarrierTaskContext

    rank = BarrierTaskContext.get().partitionId()
    _received[token] = batches
    try:
        serve(meeting, rank, path=path, echo=False)
    finally:
        _received.pop(token, None)
    yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int64())})


def _records(batches: Iterator[Any]) -> Iterator[tuple[str, int, memoryview]]:
    """The shards in Arrow batches, as views of their memory."""
    for batch in batches:
        if "shard" not in batch.schema.names:
            continue
        columns = [batch.column(name) for name in ("source", "place", "shard")]
        for source, place, shard in zip(*columns, strict=True):
            yield source.as_py(), place.as_py(), memoryview(shard.as_buffer())


class SparkLauncher(Launcher):
    """Starts new ranks for each call; Spark keeps its Python workers, so only the first start is slow."""

    runtime = "spark"
    warm = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self._spark = session.sparkContext
        self.bind = session.conf.get("spark.driver.host")
        self._thread: Any = None
        self._error: BaseException | None = None
        self._token = ""
        self._packed: dict[str, Packed] = {}
        self._world = 0
        self._done = -1

    def slots(self, wanted: int = 0) -> int:
        if not self._spark.master.startswith("local["):
            # Executors of a young cluster register one by one; give them a moment.
            wait_until(lambda: self._count_slots() >= wanted, _REGISTER_SECONDS, step=0.2)
        return self._count_slots()

    def _count_slots(self) -> int:
        conf = self._spark.getConf()
        per_task = int(conf.get("spark.task.cpus", "1"))
        fixed = conf.get("spark.default.parallelism")
        if fixed is not None or conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            # Here the default parallelism is not the number of cores: compute it from the settings.
            executors = conf.get("spark.dynamicAllocation.maxExecutors", conf.get("spark.executor.instances", "0"))
            cores = int(executors) * int(conf.get("spark.executor.cores", "1"))
            if cores:
                return cores // per_task
        return int(self._spark.defaultParallelism) // per_task

    def advice(self, world: int) -> str:
        return (
            f"Use workers={self.slots()} or fewer, or start Spark with more cores: "
            f'init_orca_context(runtime="spark", cores={world}).'
        )

    def begin(self, sources: Mapping[str, Source]) -> Mapping[str, Delivery]:
        self._token = uuid.uuid4().hex[:12]
        self._packed = {name: source.handles() for name, source in sources.items()}
        stage = _Stage(self._token, {name: packed.open_file for name, packed in self._packed.items()})
        return {name: _Spooled(stage, name) for name in sources}

    def start(self, world: int, meeting: Meeting) -> None:
        from pyspark import InheritableThread

        self._error = None
        self._done = -1
        self._world = world
        stage = self._rows(world).mapInArrow(_rank_task(meeting, driver_path(), self._token), "rank long", barrier=True)

        def job() -> None:
            self._spark.setJobGroup(self._token, "orca: a gang of ranks", interruptOnCancel=True)
            try:
                stage.collect()
            except BaseException as error:
                self._error = error

        self._thread = InheritableThread(target=job, daemon=True)
        self._thread.start()

    def _rows(self, world: int) -> Any:
        """The packed shards of all sources as a DataFrame with one partition per rank."""
        if not self._packed:
            return self._session.range(0, world, 1, world)
        frames = [packed.frame(name, world) for name, packed in self._packed.items()]
        rows = functools.reduce(lambda one, two: one.union(two), frames)
        # Any rank may receive any shard first; by number is only the most even distribution.
        if hasattr(rows, "repartitionById"):
            return rows.repartitionById(world, "target")
        return rows.repartition(world, "target")

    def finish(self) -> None:
        self._packed = {}

    def preparing(self) -> bool:
        """Whether the data's own transformations, which run before the barrier stage, make progress."""
        tracker = self._spark.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._token)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        current = [stage for stage in stages if stage is not None]
        done, self._done = self._done, sum(stage.numCompletedTasks for stage in current)
        return self._done > done or any(stage.numActiveTasks and stage.numTasks != self._world for stage in current)

    def deaths(self) -> dict[int, str]:
        if self._error is None:
            return {}
        text = str(self._error)
        if "Python worker exited unexpectedly" in text:
            return dict.fromkeys(range(self._world), "its Spark Python worker was killed or crashed")
        raised = [line.strip() for line in text.splitlines() if _RAISED.match(line.strip())]
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
        reason = raised[-1] if raised else " ".join(lines[:3])
        return dict.fromkeys(range(self._world), f"the Spark stage failed: {reason[:500]}")

    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        if self._thread is not None:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._spark.cancelJobGroup(self._token)
                self._thread.join(_CANCEL_SECONDS)
            self._thread = None
        if patience == 0:
            # A stopped Python worker would outlive its task: Spark only asks it to exit.
            here = host_id()
            for hello in hellos.values():
                if hello.host_id == here:
                    kill(hello)
        # A rank that was killed while writing its share could not remove it.
        for left in Path(tempfile.gettempdir()).glob(spool_prefix(self._token) + "*"):
            shutil.rmtree(left, ignore_errors=True)
