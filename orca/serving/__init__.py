"""A read-only HTTP server for the models of a store: ``orca serve``, or ``create_application`` for any ASGI server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orca.serving.application import create_application
    from orca.serving.settings import Settings

__all__ = ["Settings", "create_application"]

_PLACES = {"Settings": "orca.serving.settings", "create_application": "orca.serving.application"}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that the command line does not import a web server.
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'orca.serving' has no attribute {name!r}")
