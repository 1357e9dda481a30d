"""Finds runtimes by name among the entry points, where Orca's own and other packages' are registered."""

from __future__ import annotations

from importlib.metadata import entry_points

from orca.errors import ArgumentError, suggest
from orca.runtimes.base import Runtime

GROUP = "orca.runtimes"


def names() -> list[str]:
    """Return the names of all registered runtimes.

    >>> {"local", "ray", "spark"} <= set(names())
    True
    """
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find(name: str) -> type[Runtime]:
    """Return the class of a runtime.

    >>> find("local").name
    'local'
    """
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            runtime = entry.load()
            if not (isinstance(runtime, type) and issubclass(runtime, Runtime)):
                raise ArgumentError(
                    f"The entry point {entry.value!r} of runtime={name!r} is {runtime!r}; expected a subclass of "
                    "orca.runtimes.base.Runtime."
                )
            return runtime
    choices = names()
    listed = " or ".join(filter(None, [", ".join(f'"{choice}"' for choice in choices[:-1]), f'"{choices[-1]}"']))
    raise ArgumentError(f"runtime={name!r} is not known. Use {listed}." + suggest(str(name), choices))


def implied(cluster_mode: str, options: set[str]) -> str:
    """Return the runtime that a cluster mode or further arguments mean, if no runtime was named."""
    runtimes = [find(name) for name in names()]
    for runtime in runtimes:
        if options & set(runtime.implied_by):
            return runtime.name
    for runtime in runtimes:
        if runtime.accepts_mode(cluster_mode):
            return runtime.name
    modes = list(dict.fromkeys(mode for runtime in runtimes for mode in runtime.cluster_modes))
    raise ArgumentError(
        f"cluster_mode={cluster_mode!r} is not known. Use one of {', '.join(modes)}." + suggest(cluster_mode, modes)
    )
