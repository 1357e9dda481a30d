"""Finds backends by name among the entry points, where Orca and other packages register them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from orca.backends.base import Backend, Spec
from orca.core.arguments import check_mapping, shown
from orca.errors import ArgumentError, MissingPackageError, UnknownArgumentError, suggest

GROUP = "orca.backends"
_PACKAGES = {"graph": "tensorflow"}
"""The package of a framework that is not called like its package."""


def find(framework: str, name: str | None = None, argument: str = "backend") -> Backend[Any]:
    """Return a backend by framework and name, or by its full name ``framework.name``, that of its entry point.

    Args:
        framework: The framework, or the full name.
        name: The backend's name.
        argument: The argument that names it, for errors.

    Raises:
        ArgumentError: No such backend is registered, or its entry point is not a Backend.
        MissingPackageError: A package that the backend imports is not installed.

    >>> find("torch", "torch_distributed").name
    'torch_distributed'
    >>> find("torch.horovod").name
    'horovod'
    """
    given = framework if name is None else name
    if name is None:
        framework, _, name = framework.partition(".")
    registered = _registered()
    if framework not in registered:
        known = ", ".join(sorted(f"{owner}.{key}" for owner, places in registered.items() for key in places))
        raise ArgumentError(
            f"{argument}={given!r}: no backend of {framework!r} is registered. "
            f"Known: {known}." + suggest(framework, registered)
        )
    places = registered[framework]
    if name in places:
        return _load(framework, name, places[name])
    for key, place in places.items():
        alias = _load(framework, key, place).framework.aliases.get(name)
        if alias in places:
            return _load(framework, alias, places[alias])
    raise ArgumentError(
        f"{argument}={given!r} is not known for {framework}. Known: {', '.join(sorted(places))}."
        + suggest(name, places)
    )


def imported() -> tuple[str, ...]:
    """List the modules that ranks need imported before they fork, of every framework that this process has imported."""
    modules: dict[str, None] = {}
    for framework, places in _registered().items():
        if framework in sys.modules or _PACKAGES.get(framework) in sys.modules:
            for name in places:
                traits = find(framework, name).traits
                modules |= dict.fromkeys(traits.preload if traits.preload_shared else ())
    return tuple(modules)


def _registered() -> dict[str, dict[str, str]]:
    """Return ``module:attribute`` of every backend, by framework and name."""
    registered: dict[str, dict[str, str]] = {}
    for entry in entry_points(group=GROUP):
        framework, _, name = entry.name.partition(".")
        if name:
            registered.setdefault(framework, {})[name] = entry.value
    return registered


def _load(framework: str, name: str, place: str) -> Backend[Any]:
    module, _, attribute = place.partition(":")
    try:
        backend = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise MissingPackageError(
            f"backend={name!r} needs {error.name or framework}, which is not installed. "
            f'Run: pip install "orca-estimator[{framework}]"'
        ) from error
    if not isinstance(backend, Backend):
        raise ArgumentError(
            f"The entry point {framework}.{name} of the group {GROUP!r} is {place!r}, a {type(backend).__name__}; "
            "expected module:object of an instance of orca.backends.base.Backend."
        )
    return backend


def create_spec(backend: Backend[Any], arguments: Mapping[str, Any], also: Sequence[str] = ()) -> Spec:
    """Create the spec from a constructor's arguments; raise if the framework and the backend do not know one.

    Args:
        backend: The backend.
        arguments: Arguments of the framework and options of the backend.
        also: Further arguments of the constructor, for suggestions.
    """
    framework, options = backend.framework, backend.traits.options
    for name, value in arguments.items():
        if name not in framework.arguments and name not in options:
            raise UnknownArgumentError(
                f"{name}={shown(value)} is not an option of backend={backend.name!r}."
                + (f" Its options: {', '.join(options)}." if options else " It has none.")
                + f" Arguments of {framework.name}: {', '.join(framework.arguments)}."
                + suggest(name, (*options, *framework.arguments, *also))
            )
    if arguments.get("config") is not None:
        check_mapping("config", arguments["config"])
    chosen = {name: value for name, value in arguments.items() if name in options}
    rest = {name: value for name, value in arguments.items() if name not in chosen}
    spec: Spec = framework.spec(rest, chosen)
    return spec
