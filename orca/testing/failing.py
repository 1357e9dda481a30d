"""Checks of failures: what breaks is named within seconds, leaves nothing behind, and the next call works."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from orca.core.machine import host_id
from orca.errors import WorkerError
from orca.testing.cases import SEED, BackendCase
from orca.testing.comparing import refused, same_weights
from orca.testing.faults import MESSAGE, Fault, KillRank, traced
from orca.testing.leftovers import Leftovers, look, settle, still_there
from orca.testing.report import Check, NotApplicable

if TYPE_CHECKING:
    from orca.backends.base import Topology
    from orca.context import Context
    from orca.estimator import Estimator
    from orca.launch.base import Hello

LIMIT_SECONDS = 15.0
"""How long a call may take to end after a rank has failed."""


def topology(est: Estimator) -> Topology:
    """The processes that train an estimator's model."""
    return est.backend.topology(est.spec, est.workers)


def hellos(est: Estimator, context: Context) -> list[Hello]:
    """The ranks of an estimator that run now."""
    ranks = topology(est).ranks
    gang = context.warm(ranks, est.backend.traits.preload, max(0, ranks - est.workers))
    return [] if gang is None else gang.places


def local_pids(est: Estimator, context: Context) -> list[int]:
    """The processes of an estimator's ranks, which have to be on this host."""
    ranks = hellos(est, context)
    if any(hello.host_id != host_id() for hello in ranks):
        raise NotApplicable("needs ranks on this host")
    return [hello.pid for hello in ranks]


def nothing_new(before: Leftovers, what: str) -> None:
    """Require that no process, port or file is there that was not there before."""
    extra = settle(before).minus(before)
    assert not extra, f"{what} left behind: {extra}"


def no_more(before: Leftovers, what: str) -> None:
    """Require that there are not more processes, ports and files than before, though others."""
    end = time.monotonic() + 5
    while (grown := look().grown(before)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not grown, f"{what} there is more than before: {grown}"


def _failing(how: str, place: Callable[[int], int]) -> Callable[[BackendCase, Context], None]:
    def fails(case: BackendCase, context: Context) -> None:
        x, y = case.data(54)
        est = case.make(case.most, seed=SEED)
        # Starts everything that is meant to stay: the gang, and the runtime's own processes.
        est.fit(x, y, batch_size=9)
        learned, pids, before = case.learned(est), local_pids(est, context), look()
        victim = place(case.most) if case.processes else 0
        fault = Fault(how, victim, est.step + 3)
        error = refused(WorkerError, lambda: est.fit(x, y, epochs=2, batch_size=9, callbacks=[fault]))
        ended = time.time()
        nothing_new(before, f"a rank that had to {how}")
        assert not still_there(pids, []), "ranks outlive the call that failed"
        host, moment = traced(error.log_tail)
        assert ended - moment < LIMIT_SECONDS, f"fit ended {ended - moment:.1f} s after the fault"
        assert (error.rank, error.host) == (victim, host), f"named rank {error.rank} on {error.host}: {error}"
        assert f"rank {victim}" in str(error), f"the error does not name rank {victim}: {error}"
        assert victim in error.failures, f"failures of ranks {list(error.failures)} without {victim}"
        _right_cause(error, how, victim)
        same_weights(case.learned(est), learned, case, "after the failed fit")
        assert np.isfinite(est.fit(x, y, batch_size=9)["loss"]).all(), "the next fit"
        no_more(before, "after a failure and another fit")

    return fails


def _right_cause(error: WorkerError, how: str, victim: int) -> None:
    if how == "raise":
        for cause in (error.failures[victim], error.__cause__):
            assert isinstance(cause, ZeroDivisionError), f"the cause is {cause!r}, not the error that was raised"
        assert MESSAGE in str(error), f"the rank's own message is missing: {error}"
        assert "before_batch" in error.remote_traceback, f"the rank's own traceback is missing: {error}"
    else:
        word = {"kill": "kill", "stop": "stalled"}[how]
        assert word in error.cause, f"the cause does not say {word!r}: {error.cause}"


def killed_server(case: BackendCase, context: Context) -> None:
    """A killed rank that serves the workers is named by its role, and ends everything."""
    x, y = case.data(54)
    est = case.make(2, seed=SEED)
    est.fit(x, y, batch_size=9)
    before, processes = look(), topology(est)
    for victim in sorted({2, processes.ranks - 1}):
        kill = KillRank(victim, partial(local_pids, est, context))
        error = refused(WorkerError, partial(est.fit, x, y, epochs=500, batch_size=9, callbacks=[kill]))
        ended = time.time() - kill.moment
        assert ended < LIMIT_SECONDS, f"fit ended {ended:.1f} s after the kill"
        role = processes.roles[victim] if processes.roles else ""
        assert (error.rank, error.role) == (victim, role), f"named rank {error.rank} ({error.role}), not {victim}"
        assert len(kill.pids) == processes.ranks, f"{len(kill.pids)} processes, expected {processes.ranks}"
        remains = still_there(kill.pids, kill.ports)
        assert not remains, f"processes or ports that outlive the failed call: {remains}"
        nothing_new(before, f"killed {role or 'server'}")
    est.fit(x, y, batch_size=9)


CHECKS = [
    Check("raised_error", _failing("raise", lambda workers: min(1, workers - 1)), ("trains",)),
    Check("killed_rank", _failing("kill", lambda workers: workers - 1), ("trains",), remote=True),
    Check("stopped_rank", _failing("stop", lambda workers: 0), ("trains",), remote=True),
    Check("killed_server", killed_server, ("trains", "servers"), remote=True),
]
