"""The checks of a runtime: its ranks, its shards, and a model without a framework on both."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import ResourceError, TransformError, WorkerError
from orca.launch.base import LogLine
from orca.testing import failing
from orca.testing.backend import BACKEND_CHECKS, running
from orca.testing.cases import SEED, BackendCase, cut
from orca.testing.comparing import near, refused
from orca.testing.failing import LIMIT_SECONDS, no_more, nothing_new
from orca.testing.faults import MESSAGE, fail, traced
from orca.testing.leftovers import listening, look, still_there
from orca.testing.linear import LINEAR_CASE
from orca.testing.report import Check, Result, chosen, perform, require

if TYPE_CHECKING:
    from orca.context import Context
    from orca.launch.rank import RankContext


@dataclass(frozen=True)
class Trial:
    """A runtime under test, and the model to train on it."""

    context: Context
    case: BackendCase
    started: bool = False
    """Whether the runtime was started for these checks, which may stop it."""


def starts(trial: Trial) -> None:
    """A started runtime is alive, has slots, and is not started twice."""
    from orca.context import current

    context = trial.context
    assert context.alive, "the runtime was started and is not alive"
    assert current() is context, "the context that was started is not the active one"
    assert context.nodes >= 1, f"{context.nodes} nodes"
    slots = context.launcher().slots(3)
    assert slots >= 3, f"the checks need 3 slots; the runtime has {slots}. Start it with cores=6"


def _report(rank: RankContext, word: str, rows: Any) -> Any:
    print(f"{word} from rank {rank.place.rank}")
    for number in range(3):
        rank.emit((rank.place.rank, number))
    some = rank.allgather(rank.place.rank, 2) if rank.place.rank < 2 else None
    return rank.place, rank.allgather((rank.place.rank, os.getpid())), some, rows * rank.place.rank


def call(trial: Trial) -> None:
    """A call runs once on every rank; values are gathered and results returned in rank order."""
    rows = np.arange(100_000)
    results = trial.context.gang(3).call(_report, "hello", rows)
    places, gathered, some, returned = zip(*results, strict=True)
    assert [place.rank for place in places] == [0, 1, 2], "results in rank order"
    assert all(place.world == 3 and place.threads >= 1 for place in places), f"places {places}"
    assert [rank for rank, _ in gathered[0]] == [0, 1, 2], "values gathered in rank order"
    assert gathered[0] == gathered[1] == gathered[2], "all ranks gather the same"
    assert len({pid for _, pid in gathered[0]}) == 3, "three ranks are three processes"
    assert some == ([0, 1], [0, 1], None), f"two of three ranks gathered {some}"
    for rank, value in enumerate(returned):
        np.testing.assert_array_equal(value, rows * rank, f"an array to rank {rank} and back")


def events(trial: Trial) -> None:
    """Events arrive while the call runs, those of each rank in order, and so does what ranks print."""
    heard: list[Any] = []
    trial.context.gang(3).call(_report, "hello", np.arange(1), on_event=heard.append)
    for rank in range(3):
        numbers = [event[1] for event in heard if isinstance(event, tuple) and event[0] == rank]
        assert numbers == [0, 1, 2], f"events of rank {rank}: {numbers}"
        lines = [event.line for event in heard if isinstance(event, LogLine) and event.rank == rank]
        assert f"hello from rank {rank}" in lines, f"printed lines of rank {rank}: {lines}"


def _pid(rank: RankContext) -> int:
    return os.getpid()


def _count_calls(rank: RankContext) -> tuple[int, int]:
    rank.memory["calls"] = rank.memory.get("calls", 0) + 1
    return rank.memory["calls"], os.getpid()


def warm_ranks(trial: Trial) -> None:
    """Ranks and their memory outlive a call exactly if the launcher says so."""
    gang = trial.context.gang(2)
    first, second = gang.call(_count_calls), gang.call(_count_calls)
    assert trial.context.gang(2) is gang, "the context has another gang of the same size"
    assert gang.running == gang.launcher.warm, f"warm={gang.launcher.warm}, but running={gang.running} after a call"
    # Processes say nothing where ranks are not warm: a runtime may use them again.
    kept = [(calls + 1, pid) for calls, pid in first] == second
    new = {calls for calls, _ in (*first, *second)} == {1}
    assert kept if gang.launcher.warm else new, f"warm={gang.launcher.warm}; calls and processes {first}, {second}"


def too_many_ranks(trial: Trial) -> None:
    """More ranks than slots are refused at once, with both numbers and advice."""
    began = time.monotonic()
    world = trial.context.launcher().slots() + 44
    refused(ResourceError, lambda: trial.context.gang(world), [f"{world}", "slots", "Use "])
    assert time.monotonic() - began < 5, f"refused after {time.monotonic() - began:.1f} s"


def _fail_on(rank: RankContext, victim: int, how: str) -> None:
    if rank.place.rank == victim:
        fail(how)
    rank.allgather(None)


def _failure(how: str, victim: int) -> Callable[[Trial], None]:
    def fails(trial: Trial) -> None:
        gang = trial.context.gang(3)
        gang.call(_pid)
        before, pids = look(), [hello.pid for hello in gang.places]
        error = refused(WorkerError, lambda: gang.call(_fail_on, victim, how))
        ended = time.time()
        nothing_new(before, f"a rank that had to {how}")
        assert not still_there(pids, []), "ranks outlive the call that failed"
        host, moment = traced(error.log_tail)
        assert ended - moment < LIMIT_SECONDS, f"the call ended {ended - moment:.1f} s after the fault"
        assert (error.rank, error.host) == (victim, host), f"named rank {error.rank} on {error.host}: {error}"
        if how == "raise":
            assert isinstance(error.__cause__, ZeroDivisionError), f"the cause is {error.__cause__!r}"
            assert MESSAGE in str(error), f"the rank's own message is missing: {error}"
        else:
            word = {"kill": "kill", "stop": "stalled"}[how]
            assert word in error.cause, f"the cause does not say {word!r}: {error.cause}"
        assert len(set(gang.call(_pid))) == 3, "the next call runs on new ranks"
        no_more(before, "after a failure and another call")

    return fails


class _Odd(Exception):
    def __init__(self, text: str, lock: object) -> None:
        super().__init__(text)
        self.lock = lock


def _raise_odd(rank: RankContext) -> None:
    import threading

    raise _Odd("cannot be pickled", threading.Lock())


def unpicklable_error(trial: Trial) -> None:
    """An exception that cannot be pickled arrives as text."""
    error = refused(WorkerError, lambda: trial.context.gang(2).call(_raise_odd), ["_Odd", "cannot be pickled"])
    assert "_raise_odd" in error.remote_traceback, f"the rank's own traceback is missing: {error}"
    assert pickle.loads(pickle.dumps(error)).rank == error.rank, "the error does not survive pickling"


def interrupted_call(trial: Trial) -> None:
    """An interrupt of the driver ends the ranks."""
    gang = trial.context.gang(3)
    gang.call(_pid)
    before, pids = look(), [hello.pid for hello in gang.places]

    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    refused(KeyboardInterrupt, lambda: gang.call(_report, "hello", np.arange(1), on_event=interrupt))
    assert not still_there(pids, []), "ranks outlive an interrupted call"
    nothing_new(before, "an interrupted call")
    assert len(gang.call(_pid)) == 3, "the next call"


def stored_shards(trial: Trial) -> None:
    """Shards come back as they were stored, empty ones too, with their numbers of rows."""
    x, y = trial.case.data(31)
    shards = cut(x, y, (3, 0, 20, 8))
    assert shards.num_partitions() == 4, f"{shards.num_partitions()} shards"
    assert shards.shard_rows() == [3, 0, 20, 8], f"rows {shards.shard_rows()}"
    assert len(shards) == 31, f"{len(shards)} rows"
    np.testing.assert_array_equal(np.concatenate([shard["x"] for shard in shards.collect()]), x, "all shards")
    np.testing.assert_array_equal(shards.first()["x"], x[:3], "the first shard")
    near(shards.inspect(lambda shard: shard["y"].sum()), y[:3].sum(), "a look at the first shard")


def transformed_shards(trial: Trial) -> None:
    """Functions run on each shard where it is stored; one that raises is named with its shard."""
    x, y = trial.case.data(31)
    doubled = cut(x, y, (3, 0, 20, 8)).transform_shard(lambda shard: {"x": 2 * shard["x"], "pid": [os.getpid()]})
    parts = doubled.collect()
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), 2 * x, "transformed rows")
    assert all(part["pid"] != [os.getpid()] for part in parts), "transformations ran in the driver"
    pairs = cut(x, y, (3, 0, 20, 8)).zip(doubled).collect()
    np.testing.assert_array_equal(pairs[3][1]["x"], 2 * pairs[3][0]["x"], "zipped shards")
    broken = cut(x, y, (3, 28)).transform_shard(lambda shard: 1 // (len(shard["x"]) - 28))
    refused(TransformError, broken.collect, ["ZeroDivisionError"])


def moved_shards(trial: Trial) -> None:
    """Rows move between shards without loss: in order to another number of shards, by key to their group."""
    x, y = trial.case.data(31)
    even = cut(x, y, (3, 0, 20, 8)).repartition(5).collect()
    np.testing.assert_array_equal(np.concatenate([shard["x"] for shard in even]), x, "repartitioned rows")
    assert max(len(shard["x"]) for shard in even) <= 7, f"sizes {[len(shard['x']) for shard in even]}"
    import pandas as pd

    from orca.shards.xshards import XShards

    frame = pd.DataFrame({"key": np.arange(31) % 7, "value": x[:, 0]})
    groups = XShards.partition(frame, num_shards=4).partition_by("key", 3).collect()
    owners = [set(group["key"]) for group in groups]
    assert len(owners) == 3, f"{len(owners)} groups, expected 3"
    assert sum(map(len, owners)) == 7, f"a key is in two shards, or missing: {owners}"
    near(sorted(pd.concat(groups)["value"]), sorted(x[:, 0]), "rows by key")


def pending_transformations(trial: Trial) -> None:
    """Transformations that are due run before a call on all slots, also while a gang is warm."""
    case = trial.case
    x, y = case.data(40)
    est = case.make(min(4, trial.context.launcher().slots(4)), seed=SEED)
    est.fit(x, y, batch_size=16)
    lazy = cut(x, y, (10, 10, 20)).transform_shard(lambda shard: {"x": shard["x"] * 1, "y": shard["y"]})
    near(est.evaluate(lazy)["loss"], est.evaluate(x, y)["loss"], "loss of rows that had to be computed")


def stops(trial: Trial) -> None:
    """Stopping ends the ranks and closes the driver's ports; a new context works."""
    from orca.context import init_orca_context, stop_orca_context

    context = trial.context
    gang = context.gang(2)
    gang.call(_pid)
    pids = [hello.pid for hello in gang.places]
    ports = listening([os.getpid()]) if gang.launcher.warm else set()
    stop_orca_context()
    assert not context.alive, "the context is alive after it was stopped"
    assert not still_there(pids, []), "ranks outlive their context"
    assert not ports or len(listening([os.getpid()])) < len(ports), "the driver still listens for its ranks"
    request = context.request
    with init_orca_context(runtime=request.runtime, cores=request.cores) as again:
        assert again is not context, "a stopped context came back"
        assert len(again.gang(2).call(_pid)) == 2, "a call in a new context"


def _on_runtime(check: Check) -> Check:
    """A check of a backend, for the trial's model."""

    def run(trial: Trial) -> None:
        check(trial.case, trial.context)

    return Check(f"model_{check.name}", run)


_OF_MODELS = [
    check for check in BACKEND_CHECKS.values() if check not in failing.CHECKS and not check.reason(LINEAR_CASE)
]
"""Failures of ranks are the same without a model."""

RUNTIME_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("starts", starts),
        Check("call", call),
        Check("events", events),
        Check("warm_ranks", warm_ranks),
        Check("too_many_ranks", too_many_ranks),
        Check("unpicklable_error", unpicklable_error),
        Check("interrupted_call", interrupted_call),
        Check("raised_error", _failure("raise", 1)),
        Check("killed_rank", _failure("kill", 2)),
        Check("stopped_rank", _failure("stop", 0)),
        Check("stored_shards", stored_shards),
        Check("transformed_shards", transformed_shards),
        Check("moved_shards", moved_shards),
        Check("pending_transformations", pending_transformations),
        *map(_on_runtime, _OF_MODELS),
        Check("stops", stops, ("started",)),
    )
}


def check_runtime(
    runtime: str | Context,
    checks: Iterable[str] | None = None,
    *,
    case: BackendCase | None = None,
    raises: bool = True,
) -> list[Result]:
    """Check that a runtime keeps Orca's promises, with a model that needs no framework.

    Args:
        runtime: The name of a runtime, which is started and stopped; or the active context, which stays.
        checks: Names from `RUNTIME_CHECKS`; by default all that apply.
        case: Another model to train and predict with.
        raises: Whether failed checks raise one AssertionError after the last one.

    Returns:
        One result for each check.

    Raises:
        AssertionError: If a check failed, with the reasons of all that failed.
    """
    wanted = chosen(RUNTIME_CHECKS, checks)
    with running(runtime) as context:
        trial = Trial(context, case or LINEAR_CASE, isinstance(runtime, str))
        results = [perform(check, trial, name="runtime", runtime=context.runtime) for check in wanted]
    if raises:
        require(results)
    return results


__all__ = ["RUNTIME_CHECKS", "Trial", "check_runtime"]
