"""The Ray runtime: joins the Ray of this process, of `address=`, RAY_ADDRESS or `ray start`, or starts one."""

from __future__ import annotations

import inspect
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.errors import ArgumentError, MissingPackageError, ResourceError, suggest
from orca.runtimes.base import Runtime, RuntimeRequest

if TYPE_CHECKING:
    from typing import Self

    from orca.launch.base import Launcher
    from orca.runtimes.gangs import Gangs
    from orca.shards.engines.base import Engine

_log = logging.getLogger("orca")
_CONNECT_SECONDS = 3.0
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
        _check_options(request.options, list(inspect.signature(ray.init).parameters))
        if ray.is_initialized():
            return cls(owned=False)
        options: dict[str, Any] = {
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": "ERROR",
            "configure_logging": False,
            **request.options,
        }
        cluster = find_cluster(options)
        if cluster is None:
            # Without an address, Ray would look for a cluster by itself.
            options["address"] = "local"
            options.setdefault("num_cpus", request.cores)
            if request.memory is not None:
                options.setdefault("object_store_memory", size_in_bytes(request.memory))
        else:
            _check_join(cluster, request)
            options["address"] = cluster.address
        # Ray's accelerator probe would otherwise warn at every start that CPU actors see no GPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        given = {key: value for key, value in options.items() if value is not None}
        if cluster is None:
            ray.init(**given)
        else:
            _join(ray, cluster, given)
        return cls(owned=True)

    @classmethod
    def running(cls, native: object | None = None) -> Self:
        import ray

        if not ray.is_initialized():
            raise ResourceError('Ray is not running. Start it with init_orca_context(runtime="ray") or ray.init().')
        return cls(owned=False)

    def launcher(self, preload: Sequence[str] = ()) -> Launcher:
        from orca.launch.ray import RayLauncher

        return RayLauncher(("orca.shards", "orca.shards.engines.ray"))

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


@dataclass(frozen=True)
class RayCluster:
    """A running Ray to join, and what names it."""

    address: str
    source: str


def find_cluster(options: Mapping[str, Any]) -> RayCluster | None:
    """Return the running Ray that `address=`, RAY_ADDRESS or Ray's own file names, in this order; None to start one."""
    given = options.get("address")
    if given is not None:
        return None if given == "local" else RayCluster(str(given), f"address={given!r}")
    variable = os.environ.get("RAY_ADDRESS")
    if variable:
        if variable == "local":
            return None
        _log.warning('joining the Ray cluster at %s, which RAY_ADDRESS names; address="local" starts one', variable)
        return RayCluster(variable, f"RAY_ADDRESS={variable}")
    return _started_here(options.get("_temp_dir"))


def _started_here(folder: str | None) -> RayCluster | None:
    """Return the cluster that `ray start` has started on this machine, if it runs; Ray keeps its address in a file."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder or os.path.join(temporary, "ray"), "ray_current_cluster")
    try:
        address = file.read_text().strip()
    except OSError:
        return None
    if not address:
        return None
    if not _answers(address):
        _log.warning("%s names a Ray cluster at %s that no longer runs; starting a new one", file, address)
        return None
    _log.warning('joining the Ray cluster at %s, which %s names; address="local" starts one', address, file)
    return RayCluster(address, f"{file} ({address})")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _check_join(cluster: RayCluster, request: RuntimeRequest) -> None:
    """Raise for arguments that only a new Ray can follow."""
    given = {
        "cores": request.cores,
        "memory": request.memory,
        **{name: request.options.get(name) for name in ("num_cpus", "num_gpus", "object_store_memory")},
    }
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{name}={value!r} is for a new Ray, but {cluster.source} names a running one, which has its own "
                f'resources. Leave out {name}=, or start a new Ray with address="local".'
            )


def _join(ray: Any, cluster: RayCluster, options: dict[str, Any]) -> None:
    host_and_port = cluster.address != "auto" and "://" not in cluster.address
    cause = "nothing listens there"
    if not host_and_port or _answers(cluster.address):
        try:
            ray.init(**options)
            return
        except (ConnectionError, RuntimeError, ValueError) as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ResourceError(
        f"The Ray cluster that {cluster.source} names cannot be joined: {cause}. Check the address, or start a new "
        'Ray with init_orca_context(runtime="ray", address="local").'
    )


def _check_options(options: Mapping[str, Any], accepted: Sequence[str]) -> None:
    """Raise for arguments that `ray.init` does not know, also if a running Ray is joined."""
    for name in options:
        if name not in accepted:
            hint = suggest(name, [*accepted, "cores", "memory", "num_nodes"])
            raise ArgumentError(f"init_orca_context does not know {name}= for Ray, and ray.init does not either.{hint}")


def size_in_bytes(text: str) -> int:
    """Return the number of bytes of a size such as "2g".

    >>> size_in_bytes("512m") == 512 << 20
    True
    """
    size = text.strip().lower().removesuffix("b")
    if size and size[-1] in _UNITS and size[:-1].isdecimal():
        return int(size[:-1]) << _UNITS[size[-1]]
    if size.isdecimal():
        return int(size)
    raise ArgumentError(f'memory={text!r}: expected a size such as "2g" or "512m".')
