"""Checkpoints of a run, on the driver: ranks send states, the keeper writes them and knows the last one."""

from __future__ import annotations

import logging
import re
from typing import Any

from orca import checkpoint
from orca.errors import ArgumentError
from orca.launch.base import Event

_log = logging.getLogger("orca")
_NAME = "checkpoint-"


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
            about = {**self._about, "epoch": data["epoch"], "step": data["step"]}
            state = {**data["state"], "position": data["position"], "example": marked(data["example"])}
            checkpoint.save(path, about, state)
        if data["remove"] is not None:
            checkpoint.remove(data["remove"])


def marked(tree: Any) -> Any:
    """Tuples have no place in a saved state; they are marked."""
    if isinstance(tree, tuple):
        return {"tuple": [marked(value) for value in tree]}
    if isinstance(tree, dict):
        return {key: marked(value) for key, value in tree.items()}
    return [marked(value) for value in tree] if isinstance(tree, list) else tree


def unmarked(tree: Any) -> Any:
    """The reverse of `marked`."""
    if isinstance(tree, dict):
        if set(tree) == {"tuple"}:
            return tuple(unmarked(value) for value in tree["tuple"])
        return {key: unmarked(value) for key, value in tree.items()}
    return [unmarked(value) for value in tree] if isinstance(tree, list) else tree


def latest(folder: str, version: int | None = None) -> str | None:
    """The newest checkpoint below a folder, or the one of a certain step; None if there is none."""
    import fsspec

    folder = str(folder).rstrip("/")
    if checkpoint.exists(folder):
        return folder
    files, target = fsspec.core.url_to_fs(folder)
    found: dict[int, str] = {}
    for name in files.ls(target, detail=False) if files.isdir(target) else []:
        match = re.search(r"(?:checkpoint|epoch)-(\d+)/?$", str(name))
        if match and checkpoint.exists(f"{folder}/{match[0].rstrip('/')}"):
            found[int(match[1])] = f"{folder}/{match[0].rstrip('/')}"
    if version is not None:
        if version not in found:
            known = ", ".join(str(step) for step in sorted(found)) or "none"
            raise ArgumentError(f"version={version}: {folder!r} has no such checkpoint. Steps with one: {known}.")
        return found[version]
    return found[max(found)] if found else None
