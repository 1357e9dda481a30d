"""The warm gangs of one runtime: process groups that are kept for the next call of the same size."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from orca.launch.resources import Resources

if TYPE_CHECKING:
    from orca.launch.base import Launcher
    from orca.launch.gang import Gang

Preload = tuple[str, ...]
NOTHING_NAMED = Resources()


class Gangs:
    """Gangs by size, imported modules, number of servers and resources of each worker."""

    def __init__(self, launcher: Callable[[Preload], Launcher]) -> None:
        self._launcher = launcher
        self._gangs: dict[tuple[int, Preload, int, Resources], Gang] = {}
        self._lock = threading.Lock()
        self._preferred: Preload = ()

    def prefer(self, preload: Preload) -> None:
        """Use processes with these modules for work that does not name any, such as work on shards."""
        self._preferred = preload

    def get(
        self,
        world: int,
        preload: Preload | None = None,
        servers: int = 0,
        resources: Resources = NOTHING_NAMED,
    ) -> Gang:
        """Return the gang of this size, or a new one; without `preload` any gang of the size will do."""
        from orca.launch.gang import Gang

        with self._lock:
            for (size, *kind), gang in self._gangs.items():
                if size == world and (preload is None or [preload, servers, resources] == kind):
                    return gang
            modules = self._preferred if preload is None else preload
            launcher = self._launcher(modules)
            launcher.require(resources)
            gang = self._gangs[world, modules, servers, resources] = Gang(launcher, world, servers=servers)
            return gang

    def warm(self, world: int, preload: Preload, servers: int = 0, resources: Resources = NOTHING_NAMED) -> Gang | None:
        """Return the gang of this size if there is one."""
        return self._gangs.get((world, preload, servers, resources))

    def stop(self, world: int, preload: Preload, servers: int = 0, resources: Resources = NOTHING_NAMED) -> None:
        """End one gang, if there is one."""
        gang = self._gangs.pop((world, preload, servers, resources), None)
        if gang is not None:
            gang.stop()

    def stop_all(self) -> None:
        """End all gangs; later calls start new ones."""
        for gang in self._gangs.values():
            with contextlib.suppress(Exception):
                gang.stop()
        self._gangs.clear()

    def rest(self) -> None:
        """Let idle gangs free what they still reserve."""
        for gang in self._gangs.values():
            gang.launcher.rest()

    def forget(self) -> None:
        """In a forked child: drop the gangs, which belong to the parent."""
        self._gangs = {}
