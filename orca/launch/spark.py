"""Ranks as the tasks of one Spark barrier stage, fed by Spark's own shuffle."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orca.launch.base import Hello, Launcher, Meeting
from orca.launch.gang import driver_path
from orca.launch.processes import kill, wait_until
from orca.launch.rank import serve
from orca.machine import host_id
from orca.shards.exchange import spool, spool_prefix

_REGISTER_SECONDS = 15.0
_CANCEL_SECONDS = 10.0

_PLACES = 20
"""Bits for the place of a shard within its partition; the partition's number stands above them."""

Record = tuple[int, tuple[str, int, bytes]]


def _tag(name: str, offset: int, world: int) -> Any:
    """Give each shard its name, its place in the source and the rank that receives it first."""

    def tag(index: int, records: Iterator[bytes]) -> Iterator[Record]:
        for place, record in enumerate(records):
            yield (index + offset + place) % world, (name, (index << _PLACES) + place, record)

    return tag


def _rank_task(meeting: Meeting, path: list[str], token: str, names: list[str]) -> Any:
    """The barrier task's body: serve one call as the rank that Spark's partition number says."""

    def run(records: Iterator[Record]) -> Iterator[int]:
        from pyspark import BarrierTaskContext

        rank = BarrierTaskContext.get().partitionId()
        incoming = (record for _, record in records)
        serve(
            meeting,
            rank,
            path=path,
            prepare=lambda context: spool(context, incoming, token, names),
            echo=False,
        )
        yield rank

    return run


class SparkLauncher(Launcher):
    """Starts the ranks anew for each call; Spark keeps its Python workers, so only the first start is slow."""

    runtime = "spark"
    warm = False

    def __init__(self, session: Any) -> None:
        self._spark = session.sparkContext
        self.bind = session.conf.get("spark.driver.host")
        self._thread: Any = None
        self._error: BaseException | None = None
        self._token = ""

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
        tagged = []
        offset = 0
        for name, source in sources.items():
            rdd = source.parts
            tagged.append(rdd.mapPartitionsWithIndex(_tag(name, offset, world)))
            offset += rdd.getNumPartitions()
        if tagged:
            spread = self._spark.union(tagged).partitionBy(world, lambda rank: rank)
        else:
            spread = self._spark.parallelize([(rank, ("", 0, b"")) for rank in range(world)], world)
        stage = spread.barrier().mapPartitions(_rank_task(meeting, driver_path(), self._token, list(sources)))

        def job() -> None:
            self._spark.setJobGroup(self._token, "orca: a gang of ranks", interruptOnCancel=True)
            try:
                stage.count()
            except BaseException as error:
                self._error = error

        self._thread = InheritableThread(target=job, daemon=True)
        self._thread.start()

    def begin(self, sources: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def preparing(self) -> bool:
        tracker = self._spark.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._token)]
        stages = sorted({int(stage) for job in jobs if job for stage in job.stageIds})
        # The last stage is the gang itself; what runs before it are the data's own transformations.
        return any(info is not None and info.numActiveTasks for info in map(tracker.getStageInfo, stages[:-1]))

    def deaths(self) -> dict[int, str]:
        if self._error is None:
            return {}
        text = str(self._error)
        if "Python worker exited unexpectedly" in text:
            return dict.fromkeys(range(1024), "its Spark Python worker was killed or has crashed")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
        return {rank: f"the Spark stage failed ({' '.join(lines[:3])[:400]})" for rank in range(1024)}

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
