"""Ranks as the tasks of one Spark barrier stage, fed with Arrow batches by Spark's own shuffle."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orca.core.machine import host_id, search_path
from orca.launch.base import Delivery, Handle, Hello, Launcher, Meeting, Needs, Source
from orca.launch.exchange import ShardFiles, spool, spool_prefix
from orca.launch.processes import kill, wait_until
from orca.launch.rank import serve
from orca.launch.spark_executors import give_up, split_by_reach
from orca.launch.spark_resources import TaskResources, task_devices

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.launch.resources import Resources

_REGISTER_SECONDS = 15.0
_CANCEL_SECONDS = 10.0
_SERVER_SECONDS = 2.0
_SERVE = "import pickle, sys; from orca.launch import spark; spark.serve_beside(*pickle.load(sys.stdin.buffer))"
_RAISED = re.compile(r"[\w.]*(Error|Exception): (?!An error occurred)")


class Packed(Protocol):
    """What a source's `handles` has to return for this launcher: packed shards that Spark can move."""

    def frame(self, name: str, readers: int, whole: bool = False) -> Any:
        """Return the shards as a DataFrame with the columns target, source, place and shard.

        The target is one of the first `readers` ranks, ideally the one that needs most of the shard's rows. A shard
        may be split for several targets, unless every rank needs the shards as a `whole`.
        """

    @property
    def files(self) -> ShardFiles:
        """How a rank opens a file with one packed shard."""


_received: dict[str, Iterator[Any]] = {}
"""In a rank's process: the Arrow batches that Spark feeds to it, by the token of the call."""


class _Stage:
    """The data of one barrier stage; the deliveries of all its sources share it."""

    def __init__(self, token: str, files: Mapping[str, ShardFiles], needs: Mapping[str, Needs]) -> None:
        self._token, self._files, self._needs = token, files, needs
        self._shards: dict[str, list[Handle]] | None = None

    def shards(self, context: RankContext) -> dict[str, list[Handle]]:
        """Exchange the shards that this rank received with the other ranks, once; return them by source."""
        if self._shards is None:
            records = _records(_received[self._token])
            self._shards = spool(context, records, self._token, self._files, self._needs)
        return self._shards


@dataclass(frozen=True)
class _Spooled:
    """The delivery of a source that Spark's shuffle brings to the ranks."""

    stage: _Stage
    name: str

    def open(self, context: RankContext) -> Sequence[Handle]:
        return self.stage.shards(context)[self.name]


def _rank_task(meeting: Meeting, path: list[str], token: str, workers: int, world: int, gpus: int | None = None) -> Any:
    """Return the barrier task's body: serve one call as the rank that Spark's partition number says."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        # Imported by name: this function is pickled by value, and would take a copy of the module's variables along.
        from pyspark import BarrierTaskContext

        from orca.launch.spark import serve_stage

        rank = BarrierTaskContext.get().partitionId()
        return serve_stage(meeting, rank, path, token, range(rank + workers, world, workers), batches, gpus)

    return run


def serve_stage(
    meeting: Meeting,
    rank: int,
    path: list[str],
    token: str,
    beside: Sequence[int],
    batches: Iterator[Any],
    gpus: int | None = None,
) -> Iterator[Any]:
    """Serve one call in a barrier task, with the ranks `beside` as processes of their own.

    The call's deliveries find the task's Arrow batches under the token. With a number of `gpus` the rank sees only
    those of its task, and the others see none.
    """
    import pyarrow as pa

    _received[token] = batches
    servers = [_start_server(meeting, server, path, token, gpus is not None) for server in beside]
    try:
        serve(meeting, rank, path=path, echo=False, devices=None if gpus is None else task_devices())
    finally:
        _received.pop(token, None)
        for server in servers:
            try:
                server.wait(_SERVER_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int64())})


def _start_server(meeting: Meeting, rank: int, path: list[str], token: str, hidden: bool) -> subprocess.Popen[bytes]:
    """Start a rank that only serves others: a barrier stage would need a core of Spark's for it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    # Spark's daemon speaks with Java through its standard output.
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    )
    assert process.stdin is not None
    # The key lets its owner into the gang: it must not be visible on the command line.
    with contextlib.suppress(BrokenPipeError), process.stdin as order:
        order.write(pickle.dumps((meeting, rank, path, token, () if hidden else None)))
    return process


def serve_beside(meeting: Meeting, rank: int, path: list[str], token: str, devices: Sequence[str] | None) -> None:
    """Be a rank that only serves others, in a process without data; ends the process."""
    code = 1
    try:
        _received[token] = iter(())
        serve(meeting, rank, path=path, echo=False, devices=devices)
        code = 0
    finally:
        # The interpreter may hang as it shuts down a process with native threads.
        os._exit(code)


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
    reserves = True

    def __init__(self, session: Any) -> None:
        self._session = session
        self._spark = session.sparkContext
        self.bind = session.conf.get("spark.driver.host")
        self._thread: Any = None
        self._error: BaseException | None = None
        self._token = ""
        self._packed: dict[str, Packed] = {}
        self._readers: dict[str, int] = {}
        self._world = self._workers = 0
        self._done = -1
        self._tasks = TaskResources(self._spark, self.resources)

    def require(self, resources: Resources) -> None:
        super().require(resources)
        self._tasks = TaskResources(self._spark, resources)

    def obstacle(self, workers: int) -> str:
        return self._tasks.obstacle() or super().obstacle(workers)

    def inventory(self) -> str:
        return self._tasks.inventory()

    def slots(self, wanted: int = 0) -> int:
        if not self._spark.master.startswith("local["):
            # Executors of a young cluster register one by one; give them a moment.
            age = time.time() - self._spark.startTime / 1000
            wait_until(lambda: self._count_slots() >= wanted, _REGISTER_SECONDS - age, step=0.2)
        return self._count_slots()

    def _count_slots(self) -> int:
        if self.resources.named:
            return self._tasks.slots()
        conf = self._spark.getConf()
        per_task = int(conf.get("spark.task.cpus", "1"))
        fixed = conf.get("spark.default.parallelism")
        if fixed is not None or conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            # Here the default parallelism is not the number of cores: compute it from the settings.
            executors = conf.get("spark.dynamicAllocation.maxExecutors", conf.get("spark.executor.instances", "0"))
            cores = int(executors) * int(conf.get("spark.executor.cores", "1"))
            if cores:
                return cores // per_task
        return self._concurrent_tasks()

    def _concurrent_tasks(self) -> int:
        """Return how many tasks the executors that are registered now run at once."""
        try:
            java = self._spark._jsc.sc()
            return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
        except Exception:
            # Not a public interface. The default parallelism is never below two on a cluster.
            return int(self._spark.defaultParallelism) // int(self._spark.getConf().get("spark.task.cpus", "1"))

    def room(self) -> int:
        slots, (reached, lost) = self._count_slots(), split_by_reach(self._spark)
        if not lost:
            return slots
        cpus = self.resources.cpus or int(self._spark.getConf().get("spark.task.cpus", "1"))
        return min(slots, sum(executor.cores // cpus for executor in reached))

    def give_up_lost(self) -> None:
        give_up(self._spark, split_by_reach(self._spark)[1])

    def advice(self, world: int) -> str:
        if self.resources.named:
            return "Use fewer workers, or fewer resources for each, or start Spark with more executors."
        return (
            f"Use workers={self.slots()} or fewer, or start Spark with more cores: "
            f'init_orca_context(runtime="spark", cores={world}).'
        )

    def begin(self, sources: Mapping[str, Source], needs: Mapping[str, Needs]) -> Mapping[str, Delivery]:
        self._token = uuid.uuid4().hex[:12]
        self._packed = {name: source.handles() for name, source in sources.items()}
        self._readers = {name: wanted.workers for name, wanted in needs.items()}
        stage = _Stage(self._token, {name: packed.files for name, packed in self._packed.items()}, needs)
        return {name: _Spooled(stage, name) for name in sources}

    def start(self, world: int, meeting: Meeting) -> None:
        from pyspark import InheritableThread

        self._error = None
        self._done = -1
        self._world = world
        workers = self._workers = world - self.servers
        task = _rank_task(meeting, search_path(), self._token, workers, world, self.resources.gpus)
        stage = self._rows(workers).mapInArrow(task, "rank long", barrier=True, profile=self._tasks.profile)

        def job() -> None:
            self._spark.setJobGroup(self._token, "orca: a gang of ranks", interruptOnCancel=True)
            try:
                stage.collect()
            except BaseException as error:
                self._error = error

        self._thread = InheritableThread(target=job, daemon=True)
        self._thread.start()

    def _rows(self, world: int) -> Any:
        """The packed shards of all sources as a DataFrame with one partition per worker."""
        if not self._packed:
            return self._session.range(0, world, 1, world)
        frames = [
            packed.frame(name, self._readers.get(name, world), whole=name not in self._readers)
            for name, packed in self._packed.items()
        ]
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
        return self._done > done or any(stage.numActiveTasks and stage.numTasks != self._workers for stage in current)

    def deaths(self) -> dict[int, str]:
        if self._error is None:
            return {}
        text = str(self._error)
        if "Python worker exited unexpectedly" in text:
            return dict.fromkeys(range(self._world), "its Spark Python worker was killed or crashed")
        if "ExecutorLostFailure" in text:
            return dict.fromkeys(range(self._world), "a Spark executor was lost")
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
