"""The executors of a Spark application, and which of them can be reached."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from orca.launch.reach import reachable

_DRIVER = "driver"


@dataclass(frozen=True)
class Executor:
    """An executor that is registered with the driver."""

    id: str
    host: str
    port: int
    cores: int


def executors(context: Any) -> list[Executor]:
    """Return the registered executors, those that Spark has lost without noticing it included.

    The list is empty where all tasks run in the driver, and if this version of Spark does not give one.
    """
    try:
        # Not a public interface: the public one has neither ids nor cores.
        summaries = context._jsc.sc().statusStore().executorList(True).iterator()
        listed = []
        while summaries.hasNext():
            summary = summaries.next()
            host, _, port = str(summary.hostPort()).rpartition(":")
            if summary.id() != _DRIVER and port:
                listed.append(Executor(str(summary.id()), host.strip("[]"), int(port), int(summary.totalCores())))
    except Exception:
        return []
    return listed


def split_by_reach(context: Any) -> tuple[list[Executor], list[Executor]]:
    """Return the executors that accept connections, and those that do not."""
    every = executors(context)
    answers = reachable([(executor.host, executor.port) for executor in every])
    pairs = list(zip(every, answers, strict=True))
    return [executor for executor, answer in pairs if answer], [executor for executor, answer in pairs if not answer]


def give_up(context: Any, lost: list[Executor]) -> None:
    """Make Spark drop executors, with the blocks that they hold; the cluster starts others if it can."""
    for executor in lost:
        # Not a public interface. Spark does the same when it has missed an executor's heartbeats for two minutes.
        with contextlib.suppress(Exception):
            java = context._jsc.sc()
            java.killAndReplaceExecutor(executor.id)
            reason = context._jvm.org.apache.spark.scheduler.ExecutorLossReason(
                f"{executor.host} does not accept connections at port {executor.port}"
            )
            # A task on another host would wait for blocks that are cached here.
            java.schedulerBackend().removeExecutor(executor.id, reason)
