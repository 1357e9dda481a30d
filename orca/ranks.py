"""The ranks of an estimator: how many it needs, where they run and which state of the model they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orca.backends.worker.job import Job
from orca.context import Context, current
from orca.core.machine import usable_cpus
from orca.errors import ResourceError
from orca.launch.gang import Gang

if TYPE_CHECKING:
    from orca.backends.base import Backend, State
    from orca.metrics import Metric


class Ranks:
    """The part of an estimator that has to do with its processes."""

    backend: Backend
    spec: Any
    workers: int
    seed: int
    metrics: list[Metric]
    _epoch: int
    _owner: str
    _version: int
    _state: State | None

    def explain(self) -> str:
        """Say what will run where, before anything starts."""
        context = current()
        launcher = context.launcher(self.backend.preload)
        slots = launcher.slots()
        ranks = self._ranks
        threads = max(1, usable_cpus() // ranks)
        lines = [
            f"{self.backend.framework} model, backend {self.backend.name}, epoch {self._epoch}, seed {self.seed}",
            f"runtime {context.runtime}: {ranks} of {slots} slots",
            *self.backend.notes(self.spec),
            f"ranks 0 to {ranks - 1}: {threads} thread{'s' if threads > 1 else ''} each"
            + (" if they share one host" if context.runtime != "local" else ""),
        ]
        if not self.backend.pretrained:
            lines += [
                f"control channel: {launcher.bind}, a port held by the driver; rendezvous: {self.backend.rendezvous}",
                f"data: every step's batch is cut evenly over {self.workers} ranks",
            ]
        if ranks > slots:
            alone = ranks == self.workers
            lines.append(f"will not start: {launcher.advice(ranks) if alone else self._too_many(context, slots)}")
        gang = context.warm(ranks, self.backend.preload)
        for hello in gang.places if gang is not None else ():
            lines.append(f"rank {hello.rank}: running, host {hello.host}, process {hello.pid}")
        return "\n".join(lines)

    def shutdown(self) -> None:
        """End the worker processes of this estimator's size; the next call starts new ones."""
        current().stop_gang(self._ranks, self.backend.preload)

    def _gang(self, context: Context) -> Gang:
        context.prefer(self.backend.preload)
        try:
            return context.gang(self._ranks, self.backend.preload)
        except ResourceError:
            if self._ranks == self.workers:
                raise
            slots = context.launcher(self.backend.preload).slots()
            if slots >= self._ranks:
                raise
            raise ResourceError(self._too_many(context, slots)) from None

    def _too_many(self, context: Context, slots: int) -> str:
        """What to say where workers, and those that serve them, do not fit."""
        servers = self._ranks - self.workers
        roles = self.backend.roles(self.spec, self.workers) or ["worker"] * self.workers + ["server"] * servers
        counts = Counter(role.split()[0] for role in roles)
        *most, last = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items()]
        where = "" if context.runtime == "local" else f'runtime="{context.runtime}", '
        return (
            f"{', '.join(most)} and {last} need {self._ranks} slots; the {context.runtime} runtime has {slots}. Use "
            f"init_orca_context({where}cores={self._ranks}), or fewer workers or servers."
        )

    @property
    def _ranks(self) -> int:
        return self.backend.ranks(self.spec, self.workers)

    def _job(self, gang: Gang) -> Job:
        """The job for the ranks; the state travels only if they do not have it already. Needs the gang's lock."""
        gang.refresh()
        if self.backend.exclusive and gang.running and gang.memory.get("replica", ("",))[0] != self._owner:
            gang.stop()
        gang.roles = self.backend.roles(self.spec, self.workers)
        known = gang.running and gang.memory.get("replica") == (self._owner, self._version)
        state = None if known else self._state
        return Job(self.backend, self.spec, self._owner, self._version, state, self.seed, tuple(self.metrics))

    def _remember(self, gang: Gang) -> None:
        if gang.running:
            gang.memory["replica"] = (self._owner, self._version)
