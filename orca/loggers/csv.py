"""The logger that writes a csv file."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from typing import Any

from orca.loggers.base import Logger
from orca.loggers.files import LogFile, check_path
from orca.loggers.values import to_plain


class CSVLogger(Logger):
    """Writes one line per epoch to a csv file.

    A value that first appears in a later epoch gets a new last column. A second fit with the same object always
    continues the file.

    >>> logger = CSVLogger("memory://runs/log.csv")
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "loss": 0.5})
    >>> logger.epoch({"epoch": 2, "loss": 0.25, "val_loss": 0.375})
    >>> import fsspec
    >>> print(fsspec.filesystem("memory").cat("runs/log.csv").decode().strip())
    epoch,loss,val_loss
    1,0.5,
    2,0.25,0.375

    Args:
        path: The file, on any fsspec path.
        append: Whether to continue an existing file instead of replacing it.

    Raises:
        ArgumentError: If `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = check_path(path)
        self.append = append
        self._columns: list[str] = []
        self._file: LogFile | None = None

    def start(self, about: dict[str, Any]) -> None:
        continues = self.append or self._file is not None
        self._file = LogFile(self.path)
        content = self._file.read() if continues else b""
        lines = _parse(content)
        self._columns = lines[0] if lines else []
        if not content.endswith(b"\n"):
            # A new file starts empty; the last line of an old one may have been cut off by a crash.
            self._file.write(_format(lines))

    def epoch(self, record: dict[str, Any]) -> None:
        assert self._file is not None, "start() comes before epoch()"
        new = [name for name in record if name not in self._columns]
        if new:
            lines = _parse(self._file.read())[1:]
            self._columns = self._columns + new
            padded = [line + [""] * (len(self._columns) - len(line)) for line in lines]
            self._file.write(_format([self._columns, *padded, self._line(record)]))
        else:
            self._file.append(_format([self._line(record)]))

    def _line(self, record: dict[str, Any]) -> list[str]:
        return [_cell(record.get(name)) for name in self._columns]


def _cell(value: Any) -> str:
    plain = to_plain(value, nan=True)
    if isinstance(plain, list | dict):
        return json.dumps(plain)
    return "" if plain is None else str(plain)


def _format(lines: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _parse(data: bytes) -> list[list[str]]:
    return [line for line in csv.reader(io.StringIO(data.decode(), newline="")) if line]
