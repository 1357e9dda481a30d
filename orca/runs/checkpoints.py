"""Checkpoints of a run, on the driver: ranks send states, the driver writes them and finds them again."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.backends.base import State
from orca.backends.parts import Reach, checkpoint_path
from orca.backends.worker.events import Checkpoint, NotReached
from orca.core.folders import Folder
from orca.core.limits import explained_limits
from orca.errors import ArgumentError, listed
from orca.runs import saved_states

_log = logging.getLogger("orca")
_REACH = ".orca-reach-"
_LEFTOVER_SECONDS = 7 * 24 * 3600.0
_PATTERN = re.compile(r"(checkpoint|epoch)-\d+")


class CheckpointWriter:
    """An event handler that writes the states that ranks send, and keeps the last one for a restart."""

    def __init__(self, about: dict[str, Any], folder: str | None) -> None:
        self._about = about
        self._folder = folder.rstrip("/") if folder is not None else None
        self.last: Checkpoint | None = None

    def __call__(self, event: object) -> None:
        if isinstance(event, NotReached):
            _log.warning("%s", self._not_reached(event))
        if not isinstance(event, Checkpoint):
            return
        path = event.path
        if path is None:
            self.last = event
            path = checkpoint_path(self._folder, event.step) if self._folder is not None else None
        if path is not None:
            about = {**self._about, "epoch": event.epoch, "step": event.step, "time": time.time()}
            state = {**event.state, "position": event.position.as_dict(), "example": event.example}
            saved_states.save(path, about, state, event.parts)
        if event.remove is not None:
            saved_states.remove(event.remove)

    def last_state(self) -> State | None:
        """Return the state of the last checkpoint, from its files if ranks wrote them."""
        if self.last is None or self.last.parts is None or self._folder is None:
            return None if self.last is None else self.last.state
        state: State = saved_states.load(checkpoint_path(self._folder, self.last.step))[1]
        return {name: value for name, value in state.items() if name not in ("position", "example")}

    def _not_reached(self, event: NotReached) -> str:
        ranks = listed(f"rank {rank} on {host}" for rank, host in event.ranks.items())
        return (
            f"checkpoints are gathered by the driver, which needs memory for the whole state: {ranks} cannot reach "
            f"model_dir={self._folder!r}. Use a path that all hosts share, so that the ranks write them."
        )


@contextmanager
def reach_of(folder: str) -> Iterator[Reach]:
    """Mark a folder for the ranks that try to reach it."""
    place = Folder(folder)
    path, token = place.target if place.is_local else place.path, uuid.uuid4().hex
    mark = Reach(path, f"{_REACH}{token[:12]}", token)
    with explained_limits(folder):
        place.files.makedirs(place.target, exist_ok=True)
        place.write(mark.name, mark.content.encode())
    for name in place.names():
        # A driver that was killed could not remove its own.
        if name.startswith(_REACH) and place.age(name) > _LEFTOVER_SECONDS:
            place.remove(name)
    try:
        yield mark
    finally:
        place.remove(mark.name)


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
