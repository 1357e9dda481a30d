"""The active session as seen by the layers below: `orca` provides it, XShards and readers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Session(Protocol):
    """The part of the active context that shards use."""

    @property
    def cores(self) -> int:
        """The default number of shards to work on at once."""

    @property
    def engine(self) -> Any:
        """The engine that stores new shards."""

    def engine_of(self, name: str, native: object | None = None) -> Any:
        """Return the engine of a runtime that runs in this process."""


_provider: Callable[[], Session] | None = None


def provide(provider: Callable[[], Session]) -> None:
    """Set the function that returns the active session."""
    global _provider
    _provider = provider


def active() -> Session:
    """Return the active session, starting the default one if there is none."""
    assert _provider is not None, "orca/__init__.py provides the session"
    return _provider()
