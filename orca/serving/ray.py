"""The same application on Ray Serve: one replica per actor, behind Ray's own HTTP proxy."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orca.errors import ArgumentError, MissingPackageError, ResourceError
from orca.serving.settings import Settings

NAME = "orca"


def deploy(settings: Settings, replicas: int = 1) -> str:
    """Start the application on Ray Serve, on the Ray that runs or a new one, and return its URL.

    Args:
        settings: What to serve. The limits of connections (slow headers, unread replies) are those of Ray's proxy.
        replicas: Actors that hold the models; each uses `settings.threads` CPUs.
    """
    try:
        import ray
        from ray import serve
    except ImportError:
        raise MissingPackageError("--on ray needs Ray Serve: pip install 'ray[serve]'.") from None
    if settings.port == 0:
        raise ArgumentError("--port 0 is not supported on Ray: choose a port.")
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": settings.host, "port": settings.port})
    if settings.tasks is None:
        # One folder for all replicas of a machine; on several machines --tasks has to name a shared one.
        settings = replace(settings, tasks=os.path.join(tempfile.gettempdir(), f"orca-tasks-{os.getpid()}"))
    try:
        serve.run(_application(settings, replicas), name=NAME, route_prefix="/")
    except RuntimeError as error:
        serve.delete(NAME)
        raise ResourceError(f"Ray Serve could not start the server: {' '.join(str(error).split())[:1000]}") from None
    return f"http://{settings.host}:{settings.port}"


def _application(settings: Settings, replicas: int) -> Any:
    from ray import serve

    def build() -> Any:
        from orca.serving.application import create_application

        return create_application(settings)

    @serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=settings.queue,
        ray_actor_options={"num_cpus": settings.threads},
        graceful_shutdown_timeout_s=settings.timeout,
    )
    @serve.ingress(build)
    class Orca:
        """Holds the models of a store."""

    deployment: Any = Orca
    return deployment.bind()


def remove() -> None:
    """End the application; running requests are finished."""
    from ray import serve

    serve.delete(NAME)


def run_on_ray(settings: Settings, replicas: int, started: Callable[[str], None]) -> None:
    """Serve on Ray until SIGTERM or SIGINT."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    started(deploy(settings, replicas))
    try:
        ended.wait()
    finally:
        remove()
