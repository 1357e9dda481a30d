"""The ranks of an estimator: their number, their place and the state of the model that they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orca.backends.worker.job import Job
from orca.context import Context, current
from orca.core.machine import usable_cpus
from orca.errors import ResourceError
from orca.launch.gang import Gang

if TYPE_CHECKING:
    from orca.backends.base import Backend, Spec, State, Topology
    from orca.metrics import Metric


class Ranks:
    """The part of an estimator that manages its processes."""

    backend: Backend[Any]
    spec: Spec
    workers: int
    seed: int
    metrics: list[Metric]
    _epoch: int
    _owner: str
    _version: int
    _state: State | None

    def explain(self) -> str:
        """Describe what will run where, before anything starts."""
        context = current()
        launcher = context.launcher(self.backend.traits.preload)
        slots = launcher.slots()
        ranks = self._ranks
        threads = max(1, usable_cpus() // ranks)
        lines = [
            f"{self.backend.framework.name} model, backend {self.backend.name}, epoch {self._epoch}, seed {self.seed}",
            f"runtime {context.runtime}: {ranks} of {slots} slots",
            *self.backend.notes(self.spec),
            f"ranks 0 to {ranks - 1}: {threads} thread{'s' if threads > 1 else ''} each"
            + (" if they share one host" if context.runtime != "local" else ""),
        ]
        if not self.backend.framework.inference_only:
            lines += [
                f"control channel: {launcher.bind}, a port held by the driver; "
                f"rendezvous: {self.backend.traits.rendezvous}",
                f"data: each global batch is split evenly across {self.workers} ranks",
            ]
        if ranks > slots:
            alone = ranks == self.workers
            lines.append(f"will not start: {launcher.advice(ranks) if alone else self._too_many(context, slots)}")
        gang = context.warm(ranks, self.backend.traits.preload)
        for hello in gang.places if gang is not None else ():
            lines.append(f"rank {hello.rank}: running, host {hello.host}, process {hello.pid}")
        return "\n".join(lines)

    def shutdown(self) -> None:
        """End the worker processes of this estimator's size; the next call starts new ones."""
        current().stop_gang(self._ranks, self.backend.traits.preload)

    def _gang(self, context: Context) -> Gang:
        context.prefer(self.backend.traits.preload)
        try:
            return context.gang(self._ranks, self.backend.traits.preload)
        except ResourceError:
            if self._ranks == self.workers:
                raise
            slots = context.launcher(self.backend.traits.preload).slots()
            if slots >= self._ranks:
                raise
            raise ResourceError(self._too_many(context, slots)) from None

    def _too_many(self, context: Context, slots: int) -> str:
        """Return the error text for workers that do not fit together with the processes that serve them."""
        servers = self._ranks - self.workers
        roles = list(self._topology.roles) or ["worker"] * self.workers + ["server"] * servers
        counts = Counter(role.split()[0] for role in roles)
        *most, last = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items()]
        where = "" if context.runtime == "local" else f'runtime="{context.runtime}", '
        return (
            f"{', '.join(most)} and {last} need {self._ranks} slots; the {context.runtime} runtime has {slots}. Use "
            f"init_orca_context({where}cores={self._ranks}), or fewer workers or servers."
        )

    @property
    def _topology(self) -> Topology:
        return self.backend.topology(self.spec, self.workers)

    @property
    def _ranks(self) -> int:
        return self._topology.ranks

    def _job(self, gang: Gang) -> Job:
        """Return the job for the ranks; the state is sent only if they lack it. Needs the gang's lock."""
        gang.refresh()
        if self.backend.traits.exclusive and gang.running and gang.memory.get("replica", ("",))[0] != self._owner:
            gang.stop()
        gang.roles = self._topology.roles
        is_warm = gang.running and gang.memory.get("replica") == (self._owner, self._version)
        state = None if is_warm else self._state
        return Job(
            self.backend, self.spec, self._owner, self._version, state, self.seed, tuple(self.metrics), self.workers
        )

    def _remember(self, gang: Gang) -> None:
        if gang.running:
            gang.memory["replica"] = (self._owner, self._version)
