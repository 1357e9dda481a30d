"""The local runtime: processes of this machine, shards in mapped files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orca.core.machine import usable_cpus
from orca.errors import ArgumentError, suggest
from orca.runtimes.base import Runtime, RuntimeRequest

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.launch.local import Nurseries


class LocalRuntime(Runtime):
    """This machine; nothing has to be started."""

    name = "local"
    cluster_modes = ("local",)
    many_hosts = False

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._nurseries: Nurseries | None = None

    @classmethod
    def start(cls, request: RuntimeRequest) -> Self:
        if request.options:
            unknown = ", ".join(f"{key}=" for key in request.options)
            hint = suggest(next(iter(request.options)), ("cores", "memory", "num_nodes", "runtime", "cluster_mode"))
            raise ArgumentError(
                f"init_orca_context does not know {unknown} for the local runtime."
                + (hint or ' Did you mean runtime="ray" or runtime="spark"?')
            )
        if request.num_nodes != 1:
            raise ArgumentError(
                f'num_nodes={request.num_nodes}: the local runtime is this one machine. Use runtime="ray" or "spark".'
            )
        return cls(request.cores or usable_cpus())

    @classmethod
    def running(cls, native: object | None = None) -> Self:
        return cls(usable_cpus())

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        from orca.launch.local import LocalLauncher, Nurseries

        if self._nurseries is None:
            self._nurseries = Nurseries()
        # Ranks most likely use what the driver uses.
        also = tuple(name for name in ("pandas", "pyarrow") if name in sys.modules)
        return LocalLauncher(self.cores, (*preload, *also), self._nurseries)

    def stop(self) -> None:
        if self._nurseries is not None:
            self._nurseries.close()
