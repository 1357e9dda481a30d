"""Checkpoints of a run, on the driver: ranks send states, the keeper writes them and knows the last one."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from orca import checkpoint
from orca.errors import ArgumentError
from orca.launch.base import Event

_log = logging.getLogger("orca")
_NAME = "checkpoint-"
_PATTERN = re.compile(r"(checkpoint|epoch)-\d+")


class Keeper:
    """An event handler that saves what ranks send as checkpoints."""

    def __init__(self, about: dict[str, Any], folder: str | None) -> None:
        self._about = about
        self._folder = folder.rstrip("/") if folder is not None else None
        self.last: Event | None = None

    def __call__(self, event: Event) -> None:
        if event.kind != "checkpoint":
            return
        data = event.data
        path = data["path"]
        if path is None:
            self.last = event
            path = f"{self._folder}/{_NAME}{data['step']}" if self._folder is not None else None
        if path is not None:
            about = {**self._about, "epoch": data["epoch"], "step": data["step"], "time": time.time()}
            state = {**data["state"], "position": data["position"], "example": data["example"]}
            checkpoint.save(path, about, state)
        if data["remove"] is not None:
            checkpoint.remove(data["remove"])


def latest(folder: str, version: int | None = None) -> str | None:
    """The newest checkpoint below a folder, or the one of a certain step; None if there is none."""
    import fsspec

    folder = str(folder).rstrip("/")
    if checkpoint.exists(folder):
        return folder
    files, target = fsspec.core.url_to_fs(folder)
    listed = files.ls(target, detail=False) if files.isdir(target) else []
    found: dict[str, dict[str, Any]] = {}
    for name in (str(entry).rstrip("/").rpartition("/")[2] for entry in listed):
        told = checkpoint.about(f"{folder}/{name}") if _PATTERN.fullmatch(name) else None
        if told is not None:
            found[f"{folder}/{name}"] = told
    if version is not None:
        steps = {int(told["step"]): path for path, told in found.items()}
        if version not in steps:
            known = ", ".join(str(step) for step in sorted(steps)) or "none"
            raise ArgumentError(f"version={version}: {folder!r} has no such checkpoint. Steps with one: {known}.")
        return steps[version]
    # By the time of writing: a longer run before this one may have left steps of higher numbers.
    return max(found, key=lambda path: (found[path].get("time", 0), found[path]["step"])) if found else None
