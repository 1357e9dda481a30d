"""Checkpoints of a run, on the driver: ranks send states, the driver writes them and finds them again."""

from __future__ import annotations

import re
import time
from typing import Any

from orca.backends.worker.events import Checkpoint
from orca.errors import ArgumentError
from orca.runs import saved_states

_NAME = "checkpoint-"
_PATTERN = re.compile(r"(checkpoint|epoch)-\d+")


class CheckpointWriter:
    """An event handler that writes the states that ranks send, and keeps the last one for a restart."""

    def __init__(self, about: dict[str, Any], folder: str | None) -> None:
        self._about = about
        self._folder = folder.rstrip("/") if folder is not None else None
        self.last: Checkpoint | None = None

    def __call__(self, event: object) -> None:
        if not isinstance(event, Checkpoint):
            return
        path = event.path
        if path is None:
            self.last = event
            path = f"{self._folder}/{_NAME}{event.step}" if self._folder is not None else None
        if path is not None:
            about = {**self._about, "epoch": event.epoch, "step": event.step, "time": time.time()}
            state = {**event.state, "position": event.position.as_dict(), "example": event.example}
            saved_states.save(path, about, state)
        if event.remove is not None:
            saved_states.remove(event.remove)


def latest(folder: str, version: int | None = None) -> str | None:
    """Return the newest checkpoint below a folder, or the one of a certain step; None if there is none."""
    import fsspec

    folder = str(folder).rstrip("/")
    if saved_states.exists(folder):
        return folder
    files, target = fsspec.core.url_to_fs(folder)
    entries = files.ls(target, detail=False) if files.isdir(target) else []
    checkpoints: dict[str, dict[str, Any]] = {}
    for name in (str(entry).rstrip("/").rpartition("/")[2] for entry in entries):
        about = saved_states.about(f"{folder}/{name}") if _PATTERN.fullmatch(name) else None
        if about is not None:
            checkpoints[f"{folder}/{name}"] = about
    if version is not None:
        steps = {int(about["step"]): path for path, about in checkpoints.items()}
        if version not in steps:
            listed = ", ".join(str(step) for step in sorted(steps)) or "none"
            raise ArgumentError(f"version={version}: {folder!r} has no such checkpoint. Steps with one: {listed}.")
        return steps[version]
    # By the time of writing: a longer run before this one may have left steps of higher numbers.
    newest = max(
        checkpoints, key=lambda path: (checkpoints[path].get("time", 0), checkpoints[path]["step"]), default=""
    )
    return newest or None
