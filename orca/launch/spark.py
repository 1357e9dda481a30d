"""Ranks as the tasks of one Spark barrier stage, fed with Arrow batches by Spark's own shuffle."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orca.core.machine import host_id
from orca.launch.base import Hello, Launcher, Meeting
from orca.launch.gang import driver_path
from orca.launch.processes import kill, wait_until
from orca.launch.rank import serve
from orca.shards.engines.spark_frames import shards_to_frame
from orca.shards.exchange import spool, spool_prefix

_REGISTER_SECONDS = 15.0
_CANCEL_SECONDS = 10.0
_RAISED = re.compile(r"[\w.]*(Error|Exception): (?!An error occurred)")


def _rank_task(meeting: Meeting, path: list[str], token: str, names: list[str]) -> Any:
    """The barrier task's body: serve one call as the rank that Spark's partition number says."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        rank = BarrierTaskContext.get().partitionId()
        serve(
            meeting,
            rank,
            path=path,
            prepare=lambda context: spool(context, _records(batches), token, names),
            echo=False,
        )
        yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int64())})

    return run


def _records(batches: Iterator[Any]) -> Iterator[tuple[str, int, memoryview]]:
    """The shards in Arrow batches, as views of their memory."""
    for batch in batches:
        if "shard" not in batch.schema.names:
            continue
        columns = [batch.column(name) for name in ("source", "place", "shard")]
        for source, place, shard in zip(*columns, strict=True):
            yield source.as_py(), place.as_py(), memoryview(shard.as_buffer())


class SparkLauncher(Launcher):
    """Starts the ranks anew for each call; Spark keeps its Python workers, so only the first start is slow."""

    runtime = "spark"
    warm = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self._spark = session.sparkContext
        self.bind = session.conf.get("spark.driver.host")
        self._thread: Any = None
        self._error: BaseException | None = None
        self._token = ""
        self._world = 0
        self._done = -1

    def slots(self, wanted: int = 0) -> int:
        found = self._count_slots()
        if not self._spark.master.startswith("local["):
            # Executors of a young cluster register one by one; give them a moment before saying no.
            wait_until(lambda: self._count_slots() >= wanted, _REGISTER_SECONDS, step=0.2)
            found = self._count_slots()
        return found

    def _count_slots(self) -> int:
        conf = self._spark.getConf()
        per_task = int(conf.get("spark.task.cpus", "1"))
        fixed = conf.get("spark.default.parallelism")
        if fixed is not None or conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            # Here the default parallelism does not tell the number of cores: count them by the settings.
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

    def start(self, world: int, meeting: Meeting, sources: Mapping[str, Any]) -> None:
        from pyspark import InheritableThread

        self._token = uuid.uuid4().hex[:12]
        self._error = None
        self._done = -1
        self._world = world
        if sources:
            frames = [shards_to_frame(source.parts, name, world) for name, source in sources.items()]
            together = functools.reduce(lambda one, two: one.union(two), frames)
            # Any rank may receive any shard first; by number is only the most even way.
            spread = (
                together.repartitionById(world, "target")
                if hasattr(together, "repartitionById")
                else together.repartition(world, "target")
            )
        else:
            spread = self._session.range(0, world, 1, world)
        task = _rank_task(meeting, driver_path(), self._token, list(sources))
        stage = spread.mapInArrow(task, "rank long", barrier=True)

        def job() -> None:
            self._spark.setJobGroup(self._token, "orca: a gang of ranks", interruptOnCancel=True)
            try:
                stage.collect()
            except BaseException as error:
                self._error = error

        self._thread = InheritableThread(target=job, daemon=True)
        self._thread.start()

    def begin(self, sources: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def preparing(self) -> bool:
        """Whether the data's own transformations, which run before the barrier stage, make progress."""
        tracker = self._spark.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._token)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        known = [stage for stage in stages if stage is not None]
        done, self._done = self._done, sum(stage.numCompletedTasks for stage in known)
        return self._done > done or any(stage.numActiveTasks and stage.numTasks != self._world for stage in known)

    def deaths(self) -> dict[int, str]:
        if self._error is None:
            return {}
        text = str(self._error)
        if "Python worker exited unexpectedly" in text:
            return dict.fromkeys(range(1024), "its Spark Python worker was killed or has crashed")
        raised = [line.strip() for line in text.splitlines() if _RAISED.match(line.strip())]
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
        reason = raised[-1] if raised else " ".join(lines[:3])
        return dict.fromkeys(range(1024), f"the Spark stage failed: {reason[:500]}")

    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        if self._thread is not None:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._spark.cancelJobGroup(self._token)
                self._thread.join(_CANCEL_SECONDS)
            self._thread = None
        if patience == 0:
            # A stopped Python worker would outlive its task: Spark only asks, it does not look.
            here = host_id()
            for hello in hellos.values():
                if hello.host_id == here:
                    kill(hello)
        # A rank that was killed while it wrote its share could not remove it.
        for left in Path(tempfile.gettempdir()).glob(spool_prefix(self._token) + "*"):
            shutil.rmtree(left, ignore_errors=True)
