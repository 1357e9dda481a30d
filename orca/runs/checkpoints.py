"""Checkpoints of a run, on the driver: ranks send states, the driver writes them and finds them again."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from orca.backends.worker.events import Checkpoint
from orca.errors import ArgumentError
from orca.runs import saved_states

_log = logging.getLogger("orca")
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


def checkpoints(folder: str) -> dict[str, dict[str, Any]]:
    """Return the descriptions of the checkpoints below a folder by path, the newest first.

    A checkpoint whose description cannot be read is left out with a warning.
    """
    import fsspec

    folder = str(folder).rstrip("/")
    files, target = fsspec.core.url_to_fs(folder)
    entries = files.ls(target, detail=False) if files.isdir(target) else []
    descriptions: dict[str, dict[str, Any]] = {}
    for name in (str(entry).rstrip("/").rpartition("/")[2] for entry in entries):
        path = f"{folder}/{name}"
        if not _PATTERN.fullmatch(name) or not saved_states.exists(path):
            continue
        about = saved_states.about(path)
        if about is None or not all(
            isinstance(value, int | float) for value in (about.get("step"), about.get("time", 0))
        ):
            _log.warning("skipping the checkpoint %r, which is damaged", path)
        else:
            descriptions[path] = about
    # By the time of writing: a longer run before this one may have left steps of higher numbers.
    order = sorted(descriptions.items(), key=lambda item: (item[1].get("time", 0), item[1]["step"]), reverse=True)
    return dict(order)


def latest(folder: str, version: int | None = None) -> str | None:
    """Return the newest checkpoint below a folder, or the one of a certain step; None if there is none."""
    if saved_states.exists(str(folder).rstrip("/")):
        return str(folder).rstrip("/")
    descriptions = checkpoints(folder)
    if version is None:
        return next(iter(descriptions), None)
    steps = {int(about["step"]): path for path, about in descriptions.items()}
    if version not in steps:
        listed = ", ".join(str(step) for step in sorted(steps)) or "none"
        raise ArgumentError(f"version={version}: {folder!r} has no such checkpoint. Steps with one: {listed}.")
    return steps[version]
