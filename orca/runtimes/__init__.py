"""Runtimes: where ranks and shards live. One file each; third parties register theirs as `orca.runtimes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orca.runtimes.spark import spark_settings

__all__ = ["spark_settings"]


def __getattr__(name: str) -> Any:
    if name == "spark_settings":
        from orca.runtimes.spark import spark_settings

        return spark_settings
    raise AttributeError(f"module 'orca.runtimes' has no attribute {name!r}")
