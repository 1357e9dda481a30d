"""The gang of a run, whose number of workers falls when some are lost and rises when there is room again."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from orca.errors import ArgumentError, ResourceError, WorkerError
from orca.launch.gang import Gang
from orca.launch.processes import wait_until
from orca.runs.ranks import gang_of
from orca.runs.values import Setup

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.runtimes.context import Context

START_SECONDS = 60.0
"""How long ranks may take to start before a run tries with fewer."""


def check_min_workers(setup: Setup, min_workers: int | None, max_failures: int) -> None:
    """Raise if the number of workers of this estimator cannot change during a run."""
    if min_workers is None:
        return
    topology, name = setup.backend.topology(setup.spec, setup.workers), setup.backend.name
    if min_workers > setup.workers:
        raise ArgumentError(f"min_workers={min_workers} is more than workers={setup.workers}.")
    if not max_failures:
        raise ArgumentError(
            f"min_workers={min_workers} is for restarts: also set max_failures=, the number of failures that the run "
            "may survive."
        )
    if not topology.lockstep:
        raise ArgumentError(
            f"min_workers={min_workers}: the asynchronous workers of backend {name!r} cannot change their number, as "
            "results depend on it. Leave out min_workers=, or use a synchronous mode."
        )
    if topology.ranks < setup.workers:
        raise ArgumentError(
            f"min_workers={min_workers}: all workers of backend {name!r} run in one process and are lost together. "
            "Leave out min_workers=; max_failures= restarts that process."
        )
    setup.backend.check(setup.spec, min_workers)


class ElasticGang:
    """The ranks of one run. Without `min_workers` their number is fixed.

    A gang with fewer workers belongs to this run alone, and ends with it.
    """

    def __init__(self, setup: Setup, context: Context, min_workers: int | None) -> None:
        self.setup = self._whole = setup
        self._context, self._least = context, min_workers
        self._failed_size = 0
        """The size that did not start although there seemed to be room for it, until there is less."""
        self._stack = ExitStack()
        if min_workers is None:
            self.gang = gang_of(setup, context)
        else:
            self.setup, self.gang = self._create(self._first_size(min_workers))

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change."""
        return self._least is not None

    @property
    def reduced(self) -> bool:
        """Whether there are fewer workers than there should be."""
        return self.setup.workers < self._whole.workers

    @property
    def size(self) -> str:
        """The number of workers in words."""
        return f"{self.setup.workers} of {self._whole.workers} workers"

    def __enter__(self) -> Self:
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._stack.close()

    def after_failure(self, error: WorkerError | ResourceError) -> None:
        """Choose the number of workers for a restart; raise if too few are left."""
        if self._least is None:
            return
        launcher = self.gang.launcher
        most, seconds = self._whole.workers, launcher.regain_seconds
        if not self.gang.started:
            # There seemed to be room for them, but they could not use it.
            self._failed_size, most, seconds = self.setup.workers, self.setup.workers - 1, 0.0
        # A cluster notices a lost host a moment later than the driver, which has lost a connection.
        room = min(most, self._await_room(launcher, seconds, looks=3))
        if room < self._least:
            raise self._too_few(error, room) from error
        self._change(room)

    def has_room(self) -> bool:
        """Whether the run could have more workers now."""
        if not self.reduced:
            return False
        room = min(self._whole.workers, self.gang.launcher.room())
        if room < self._failed_size:
            self._failed_size = 0
        return room > self.setup.workers and room != self._failed_size

    def grow(self) -> bool:
        """Take as many workers as there is room for; return whether there are more now."""
        workers = self.setup.workers
        room = min(self._whole.workers, self.gang.launcher.room())
        try:
            self._change(max(room, workers))
        except ResourceError:
            self._failed_size = room
        return self.setup.workers > workers

    def _first_size(self, least: int) -> int:
        whole, context = self._whole, self._context
        warm = context.warm(whole.topology.ranks, whole.preload, whole.servers, whole.resources)
        if warm is not None and warm.running:
            return whole.workers
        context.rest()
        launcher = self._launcher()
        room = min(whole.workers, self._await_room(launcher, launcher.regain_seconds))
        if room < least:
            raise ResourceError(
                f"min_workers={least} does not fit: the {launcher.runtime} runtime has room for {room} "
                f"worker{'s' if room != 1 else ''}. {launcher.advice(least)}"
            )
        return room

    def _await_room(self, launcher: Launcher, seconds: float, looks: int = 1) -> int:
        """Return the room: once `looks` looks in a row found enough for all workers, or when the time is over.

        Hosts that are not reached by then are left out.
        """
        answers: list[bool] = []

        def is_enough() -> bool:
            answers.append(launcher.room() >= self._whole.workers)
            return all(answers[-looks:]) and len(answers) >= looks

        if seconds:
            wait_until(is_enough, seconds, step=0.5)
        room = launcher.room()
        if room < self._whole.workers:
            launcher.give_up_lost()
        return room

    def _create(self, workers: int) -> tuple[Setup, Gang]:
        whole = self._whole
        if workers == whole.workers:
            return whole, gang_of(whole, self._context)
        setup = replace(whole, workers=workers)
        return setup, Gang(self._launcher(), setup.topology.ranks, servers=setup.servers)

    def _launcher(self) -> Launcher:
        launcher = self._context.launcher(self._whole.preload)
        launcher.require(self._whole.resources)
        return launcher

    def _change(self, workers: int) -> None:
        if workers == self.setup.workers:
            return
        setup, gang = self._create(workers)
        self._leave()
        self.setup, self.gang = setup, gang
        self._hold()

    def _hold(self) -> None:
        """Keep other threads from using the gang."""
        gang = self.gang
        self._stack.enter_context(gang.lock)
        if self.elastic:
            self._stack.callback(setattr, gang, "start_seconds", gang.start_seconds)
            gang.start_seconds = START_SECONDS

    def _leave(self) -> None:
        """End a gang that nobody else uses."""
        if self.reduced:
            self.gang.stop()

    def _too_few(self, error: WorkerError | ResourceError, room: int) -> WorkerError | ResourceError:
        text = (
            f"There is room for {room} of {self._whole.workers} workers, fewer than min_workers={self._least}. Add "
            "hosts and call fit again, with resume=True if the estimator has a model_dir"
        )
        text += f"; or allow fewer with min_workers={room}." if room else "."
        if isinstance(error, ResourceError):
            return ResourceError(f"{error} {text}")
        return WorkerError(
            error.rank,
            error.host,
            f"{error.cause.rstrip()} {text}",
            remote_traceback=error.remote_traceback,
            log_tail=error.log_tail,
            failures=error.failures,
            role=error.role,
        )
