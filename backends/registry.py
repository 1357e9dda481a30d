"""Finds backends by name among the entry points, where Orca's own and other packages' are registered."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points

from orca.backends.base import Backend
from orca.errors import ArgumentError, MissingPackageError, suggest

GROUP = "orca.backends"

_ALIASES = {
    "keras": {
        "tf2": "multiworker",
        "tf_distributed": "multiworker",
        "bigdl": "parameter_server",
        "ps": "parameter_server",
    },
    "torch": {
        "ddp": "torch_distributed",
        "torch.distributed": "torch_distributed",
        "bigdl": "parameter_server",
        "ps": "parameter_server",
    },
}


def find(framework: str, name: str) -> Backend:
    """Return the backend of a framework by name; all are registered as entry points ``framework.name``.

    >>> find("torch", "torch_distributed").name
    'torch_distributed'
    """
    name = _ALIASES.get(framework, {}).get(name, name)
    places = {}
    for entry in entry_points(group=GROUP):
        owner, _, key = entry.name.partition(".")
        if owner == framework and key:
            places[key] = entry.value
    if name not in places:
        raise ArgumentError(
            f"backend={name!r} is not known for {framework}. Known: {', '.join(sorted(places))}."
            + suggest(name, places)
        )
    module, _, attribute = places[name].partition(":")
    try:
        backend = getattr(import_module(module), attribute)
    except ImportError as error:
        raise MissingPackageError(
            f"backend={name!r} needs {error.name or framework}, which is not installed. "
            f'Run: pip install "orca-estimator[{framework}]"'
        ) from error
    assert isinstance(backend, Backend), f"{places[name]} is not a Backend"
    return backend


def imported() -> tuple[str, ...]:
    """The modules that ranks want imported before they fork, of every framework that this process has imported."""
    wanted: dict[str, None] = {}
    for entry in entry_points(group=GROUP):
        framework, _, name = entry.name.partition(".")
        if framework in sys.modules:
            backend = find(framework, name)
            wanted |= dict.fromkeys(backend.preload if backend.preload_shared else ())
    return tuple(wanted)
