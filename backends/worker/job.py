"""The job of a rank: a model in a state, and the replica that the rank keeps for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orca.backends.base import Backend, Replica, Spec, State

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


@dataclass(frozen=True)
class Job:
    """The model that a rank works with, and its state."""

    backend: Backend[Any]
    spec: Spec
    owner: str
    version: int
    state: State | None
    seed: int
    metrics: Sequence[Metric] = ()
    workers: int = 1


_KEY = "replica"


def keep_replica(context: RankContext, owner: str, version: int, replica: Replica) -> None:
    """Keep a rank's replica, in the state of this version, for the next call."""
    context.memory[_KEY] = (owner, version, replica)


def replica_of(context: RankContext, job: Job) -> Replica:
    """Return the rank's replica in the job's state: the one it keeps if that is current, else a new one."""
    owner, version, replica = context.memory.get(_KEY, (None, -1, None))
    if owner != job.owner or replica is None:
        context.memory.pop(_KEY, None)
        replica = job.backend.build(job.spec, context, job.seed, job.workers)
        version = -1
    if version != job.version and job.state is None and job.version > 0:
        raise RuntimeError("this rank lacks the model's state; call the estimator's shutdown() and try again")
    if version != job.version and job.state is not None:
        replica.load_state(job.state)
    keep_replica(context, job.owner, job.version, replica)
    return replica  # type: ignore[no-any-return]
