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


def replica_of(context: RankContext, job: Job) -> Replica:
    """Return the rank's replica in the job's state: the warm one if it belongs to the job, else a new one."""
    owner, version, replica = context.memory.get("replica", (None, -1, None))
    if owner != job.owner or replica is None:
        context.memory.pop("replica", None)
        replica = job.backend.build(job.spec, context, job.seed, job.workers)
        version = -1
    if version != job.version and job.state is None and job.version > 0:
        raise RuntimeError("this rank lacks the model's state; call the estimator's shutdown() and try again")
    if version != job.version and job.state is not None:
        replica.load_state(job.state)
    context.memory["replica"] = (job.owner, job.version, replica)
    return replica  # type: ignore[no-any-return]
