"""The logger that writes JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from orca.loggers.base import Logger
from orca.loggers.files import LogFile, check_path
from orca.loggers.values import by_step, to_plain


class JSONLLogger(Logger):
    """Writes one JSON object per epoch, and optionally one per step, to a file.

    Lines of steps have "step" but no "epoch". NaN and infinity, which JSON cannot represent, become null. A second
    fit with the same object always continues the file.

    >>> logger = JSONLLogger("memory://runs/log.jsonl", append=False)
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "loss": float("nan")})
    >>> import fsspec
    >>> print(fsspec.filesystem("memory").cat("runs/log.jsonl").decode().strip())
    {"epoch": 1, "loss": null}

    Args:
        path: The file, on any fsspec path.
        append: Whether to continue an existing file instead of replacing it.
        steps: Whether to write single steps too.

    Raises:
        ArgumentError: If `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = True, steps: bool = False) -> None:
        self.path = check_path(path)
        self.append = append
        self.with_steps = steps
        self._file: LogFile | None = None

    def start(self, about: dict[str, Any]) -> None:
        continues = self.append or self._file is not None
        self._file = LogFile(self.path)
        content = self._file.read() if continues else b""
        if not content:
            self._file.write(b"")
        elif not content.endswith(b"\n"):
            # A crash cut off the last line; the next one must not be appended to it.
            self._file.append(b"\n")

    def steps(self, first: int, values: dict[str, Any]) -> None:
        if self.with_steps:
            self._add({"step": step, **numbers} for step, numbers in by_step(first, values))

    def epoch(self, record: dict[str, Any]) -> None:
        self._add([record])

    def _add(self, objects: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None, "start() comes before steps() and epoch()"
        lines = "".join(json.dumps(to_plain(entry), allow_nan=False) + "\n" for entry in objects)
        if lines:
            self._file.append(lines.encode())
