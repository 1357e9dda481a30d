"""Finds runtimes by name: Orca's own, and those that other packages register as entry points `orca.runtimes`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from orca.errors import ArgumentError, suggest
from orca.runtimes.base import Runtime

GROUP = "orca.runtimes"
_OWN = {
    "local": "orca.runtimes.local:LocalRuntime",
    "ray": "orca.runtimes.ray:RayRuntime",
    "spark": "orca.runtimes.spark:SparkRuntime",
}
"""Found without a look at the entry points, which takes longer than starting the local runtime."""


def _others() -> dict[str, str]:
    """The runtimes of other packages, by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def names() -> list[str]:
    """Return the names of all runtimes.

    >>> names()[:3]
    ['local', 'ray', 'spark']
    """
    return list({**_OWN, **_others()})


def find(name: str) -> type[Runtime]:
    """Return the class of a runtime.

    >>> find("local").name
    'local'
    """
    place = _OWN.get(name) or _others().get(name)
    if place is None:
        *most, last = [f'"{choice}"' for choice in names()]
        raise ArgumentError(
            f"runtime={name!r} is not known. Use {', '.join(most)} or {last}." + suggest(str(name), names())
        )
    module, _, attribute = place.partition(":")
    runtime = getattr(import_module(module), attribute)
    if not (isinstance(runtime, type) and issubclass(runtime, Runtime)):
        raise ArgumentError(
            f"The entry point {place!r} of runtime={name!r} is {runtime!r}; expected a subclass of "
            "orca.runtimes.base.Runtime."
        )
    return runtime


def _all() -> Iterator[type[Runtime]]:
    """All runtimes, Orca's own first."""
    yield from map(find, _OWN)
    yield from map(find, _others())


def implied(cluster_mode: str, options: set[str]) -> str:
    """Return the runtime that a cluster mode or further arguments mean, if no runtime was named."""
    for runtime in _all() if options else ():
        if options & set(runtime.implied_by):
            return runtime.name
    for runtime in _all():
        if runtime.accepts_mode(cluster_mode):
            return runtime.name
    modes = list(dict.fromkeys(mode for runtime in _all() for mode in runtime.cluster_modes))
    raise ArgumentError(
        f"cluster_mode={cluster_mode!r} is not known. Use one of {', '.join(modes)}." + suggest(cluster_mode, modes)
    )
