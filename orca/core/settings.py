"""Settings of this process, which users set on `OrcaContext`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orca.errors import ArgumentError, suggest

CHOICES: dict[str, tuple[Any, ...]] = {
    "log_output": (True, False),
    "pandas_read_backend": ("arrow", "pandas", "spark"),
    "serialize_data_creator": (True, False),
    "train_data_store": ("DRAM", "DISK"),
    "barrier_mode": (True, False),
}


@dataclass
class Settings:
    """The current values.

    All but `log_output` and `serialize_data_creator` are accepted for BigDL compatibility and have no effect.
    """

    log_output: bool = False
    """Show what the ranks print, each line with its rank."""
    pandas_read_backend: str = "arrow"
    serialize_data_creator: bool = False
    """Let the workers of a host call data creators one after another."""
    train_data_store: str = "DRAM"
    barrier_mode: bool = True
    shard_size: int | None = None

    def change(self, name: str, value: Any) -> None:
        """Set one value, after checking it."""
        choices = CHOICES.get(name)
        if choices is None and name != "shard_size":
            raise ArgumentError(
                f"OrcaContext has no setting {name!r}. Settings: {', '.join(CHOICES)}, shard_size."
                + suggest(name, CHOICES)
            )
        if choices is not None and value not in choices:
            raise ArgumentError(f"OrcaContext.{name} = {value!r}: expected one of {choices}.")
        setattr(self, name, value)


settings = Settings()
