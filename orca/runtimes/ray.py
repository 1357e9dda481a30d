"""The Ray runtime: joins the Ray of this process or of `address=`, or starts one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orca.errors import ArgumentError, MissingPackageError, ResourceError
from orca.runtimes.base import Runtime, RuntimeRequest

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.runtimes.gangs import Gangs
    from orca.shards.engines.base import Engine

_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


class RayRuntime(Runtime):
    """A Ray cluster; a slot is one of its CPUs."""

    name = "ray"
    cluster_modes = ("ray",)

    def __init__(self, owned: bool) -> None:
        import ray

        self._owned = owned
        self.cores = int(ray.cluster_resources().get("CPU", 1))

    @classmethod
    def start(cls, request: RuntimeRequest) -> Self:
        try:
            import ray
        except ImportError as error:
            raise MissingPackageError(
                'runtime="ray" needs Ray, which is not installed. Run: pip install "orca-estimator[ray]"'
            ) from error
        if ray.is_initialized():
            return cls(owned=False)
        options: dict[str, Any] = {
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "ERROR",
            "configure_logging": False,
            **request.options,
        }
        if "address" not in options:
            options.setdefault("num_cpus", request.cores)
            if request.memory is not None:
                options.setdefault("object_store_memory", size_in_bytes(request.memory))
        elif "num_cpus" in options:
            raise ArgumentError("num_cpus= cannot be given together with address=: a running Ray has its own CPUs.")
        # Ray's accelerator probe would otherwise warn at every start that CPU actors see no GPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(**{key: value for key, value in options.items() if value is not None})
        return cls(owned=True)

    @classmethod
    def running(cls, native: object | None = None) -> Self:
        import ray

        if not ray.is_initialized():
            raise ResourceError('Ray is not running. Start it with init_orca_context(runtime="ray") or ray.init().')
        return cls(owned=False)

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        from orca.launch.ray import RayLauncher

        return RayLauncher()

    def engine(self, gangs: Gangs) -> Engine:
        from orca.shards.engines.ray import RayEngine

        return RayEngine(gangs.rest)

    def alive(self) -> bool:
        import ray

        return bool(ray.is_initialized())

    def nodes(self) -> int:
        import ray

        return max(1, sum(1 for node in ray.nodes() if node["Alive"]))

    def stop(self) -> None:
        if self._owned:
            import ray

            self._owned = False
            ray.shutdown()


def size_in_bytes(text: str) -> int:
    """Return the number of bytes of a size such as "2g".

    >>> size_in_bytes("512m") == 512 << 20
    True
    """
    size = text.strip().lower().removesuffix("b")
    if size and size[-1] in _UNITS and size[:-1].isdigit():
        return int(size[:-1]) << _UNITS[size[-1]]
    if size.isdigit():
        return int(size)
    raise ArgumentError(f'memory={text!r}: expected a size such as "2g" or "512m".')
