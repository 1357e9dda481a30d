"""Loggers: write what a run reports to csv, JSON lines or TensorBoard, from the driver; mlflow_logger.py has MLflow."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from orca.callbacks import Logger
from orca.errors import ArgumentError, MissingPackageError, suggest


class CSVLogger(Logger):
    """Writes one line per epoch to a csv file on any fsspec path.

    A value that first appears in a later epoch gets a new last column. A file that is there already is replaced, or
    with ``append=True`` continued; a second fit with the same object always continues.

    >>> logger = CSVLogger("memory://runs/log.csv")
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "loss": 0.5})
    >>> logger.epoch({"epoch": 2, "loss": 0.25, "val_loss": 0.375})
    >>> import fsspec
    >>> print(fsspec.filesystem("memory").cat("runs/log.csv").decode().strip())
    epoch,loss,val_loss
    1,0.5,
    2,0.25,0.375
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = _path(path)
        self.append = append
        self._columns: list[str] = []
        self._file: _File | None = None

    def start(self, about: dict[str, Any]) -> None:
        continues = self.append or self._file is not None
        self._file = _File(self.path)
        there = self._file.read() if continues else b""
        lines = _lines(there)
        self._columns = lines[0] if lines else []
        if not there.endswith(b"\n"):
            # A new file begins empty; of an old one the last line may have been cut off by a crash.
            self._file.write(_csv(lines))

    def epoch(self, record: dict[str, Any]) -> None:
        assert self._file is not None, "start() comes before epoch()"
        new = [name for name in record if name not in self._columns]
        if new:
            lines = _lines(self._file.read())[1:]
            self._columns = self._columns + new
            padded = [line + [""] * (len(self._columns) - len(line)) for line in lines]
            self._file.write(_csv([self._columns, *padded, self._line(record)]))
        else:
            self._file.append(_csv([self._line(record)]))

    def _line(self, record: dict[str, Any]) -> list[str]:
        return [_cell(record.get(name)) for name in self._columns]


class JSONLLogger(Logger):
    """Writes one JSON object per epoch, and with ``steps=True`` one per step, to a file on any fsspec path.

    Lines of steps have "step" but no "epoch". NaN and infinite values become null, because JSON has no word for
    them. A file that is there already is continued, or with ``append=False`` replaced; a second fit with the same
    object always continues.

    >>> logger = JSONLLogger("memory://runs/log.jsonl", append=False)
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "loss": float("nan")})
    >>> import fsspec
    >>> print(fsspec.filesystem("memory").cat("runs/log.jsonl").decode().strip())
    {"epoch": 1, "loss": null}
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = True, steps: bool = False) -> None:
        self.path = _path(path)
        self.append = append
        self.with_steps = steps
        self._file: _File | None = None

    def start(self, about: dict[str, Any]) -> None:
        continues = self.append or self._file is not None
        self._file = _File(self.path)
        there = self._file.read() if continues else b""
        if not there:
            self._file.write(b"")
        elif not there.endswith(b"\n"):
            # A crash cut the last line off; the next one must not be glued to it.
            self._file.append(b"\n")

    def steps(self, first: int, values: dict[str, Any]) -> None:
        if self.with_steps:
            self._add({"step": step, **told} for step, told in _by_step(first, values))

    def epoch(self, record: dict[str, Any]) -> None:
        self._add([record])

    def _add(self, objects: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None, "start() comes before steps() and epoch()"
        lines = "".join(json.dumps(_plain(entry), allow_nan=False) + "\n" for entry in objects)
        if lines:
            self._file.append(lines.encode())


class TensorBoard(Logger):
    """Writes scalars for TensorBoard: training below ``<path>/<name>/train``, validation beside it in ``validation``.

    Values told per step keep their name and are drawn over the steps; the same value of the whole epoch is called
    ``epoch_<name>``. A value ``val_x`` is ``x`` among the validation scalars, so that TensorBoard draws both in one
    chart. Steps are told when their epoch has ended, so they carry that time. `points` and `summary` hold what was
    written; steps told again, as after going back to a checkpoint, replace those told before.

    >>> logger = TensorBoard("memory://runs", name="digits")
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "step": 20, "loss": 0.5, "val_loss": 0.75})
    >>> [(step, value) for step, value, wall_time in logger.summary("validation", "Loss")]
    [(20, 0.75)]
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        self.path = _path(path)
        self.name = name
        self.points: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
        """(split, tag) to (step, value, wall time), split being "train" or "validation"."""
        self._files: dict[str, _EventFile] = {}
        self._per_step: set[str] = set()

    def start(self, about: dict[str, Any]) -> None:
        _tensorboard()
        self._files = {}
        self._per_step = set()

    def steps(self, first: int, values: dict[str, Any]) -> None:
        self._per_step.update(values)
        self._write("train", [(step, numbers_of(told)) for step, told in _by_step(first, values)])

    def epoch(self, record: dict[str, Any]) -> None:
        step = int(record["epoch"] if record.get("step") is None else record["step"])
        train: dict[str, float] = {}
        validation: dict[str, float] = {}
        for name, value in numbers_of(record).items():
            if name.startswith("val_"):
                validation[name.removeprefix("val_")] = value
            elif name not in ("epoch", "step", "rows", "seconds"):
                train[f"epoch_{name}" if name in self._per_step else name] = value
        self._write("train", [(step, train)])
        self._write("validation", [(step, validation)])

    def summary(self, split: str, tag: str) -> list[tuple[int, float, float]]:
        """All values of a scalar as (step, value, wall time), in the order of steps.

        `split` is "train" or "validation". Case and underscores of `tag` do not matter, and "LearningRate",
        "Throughput" and "Top1Accuracy" stand for lr, rows_per_s and accuracy.
        """
        if split not in ("train", "validation"):
            raise ArgumentError(
                f'split={split!r}: expected "train" or "validation".' + suggest(split, ("train", "validation"))
            )
        tags = [known for part, known in self.points if part == split]
        if not tags:
            fix = "Give validation_data= to fit." if split == "validation" else "Call fit with this object first."
            raise ArgumentError(f"split={split!r} has no values yet. {fix}")
        if tag in tags:
            return list(self.points[split, tag])
        alike = {_bare(known): known for known in tags}
        word = _bare(tag)
        for candidate in (word, _bare(_ALIASES.get(word, "")), word.removeprefix("val")):
            if candidate in alike:
                return list(self.points[split, alike[candidate]])
        raise ArgumentError(
            f"tag={tag!r} is not among the {split} scalars: {', '.join(tags)}." + suggest(str(tag).lower(), tags)
        )

    def _write(self, split: str, told: list[tuple[int, dict[str, float]]]) -> None:
        told = [(step, values) for step, values in told if values]
        if not told:
            return
        now = time.time()
        for step, values in told:
            for tag, value in values.items():
                kept = self.points.setdefault((split, tag), [])
                while kept and kept[-1][0] >= step:
                    kept.pop()
                kept.append((step, value, now))
        # Made with the first value, so that a run without validation leaves no empty curve; and begun anew before
        # it is large, because where files cannot be appended to, each epoch writes the whole file.
        if split not in self._files or self._files[split].size > _EventFile.LARGE:
            self._files[split] = _EventFile(_joined(self.path, self.name, split), now)
        self._files[split].write(told, now)


_ALIASES = {"learningrate": "lr", "throughput": "rows_per_s", "top1accuracy": "accuracy"}
"""Names of the predecessor's scalars, as `_bare` gives them."""


class _File:
    """A file on any fsspec path that grows; its bytes are there when a method returns."""

    def __init__(self, path: str) -> None:
        import fsspec

        self._files, self._target = fsspec.core.url_to_fs(path)
        if self._files.isdir(self._target):
            raise ArgumentError(f"path={path!r} is a folder. Name a file in it.")
        parent = self._files._parent(self._target)
        if parent and not self._files.exists(parent):
            self._files.makedirs(parent, exist_ok=True)
        protocol = self._files.protocol
        self._is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def read(self) -> bytes:
        return bytes(self._files.cat_file(self._target)) if self._files.exists(self._target) else b""

    def write(self, data: bytes) -> None:
        """Replace what is there."""
        if self._is_local:
            # Moved into place, so that a crash meanwhile leaves the old lines; a link stays a link.
            target = os.path.realpath(self._target)
            draft = f"{target}.{os.getpid()}.draft"
            with open(draft, "wb") as handle:
                handle.write(data)
            os.replace(draft, target)
        else:
            self._files.pipe_file(self._target, data)

    def append(self, data: bytes) -> None:
        # Only where appending is known to work: object stores may take mode "ab" and still overwrite.
        if self._is_local:
            with open(self._target, "ab") as handle:
                handle.write(data)
        else:
            self._files.pipe_file(self._target, self.read() + data)


class _EventFile:
    """A file of TensorBoard events. TensorBoard's own EventFileWriter would import TensorFlow where it is installed,
    so only its record format and its messages are used."""

    LARGE = 1 << 22
    _count = itertools.count()

    def __init__(self, folder: str, now: float) -> None:
        # TensorBoard reads files that are named like this, in the order of their names.
        place = f"{socket.gethostname()}.{os.getpid()}.{next(self._count):06d}"
        self._file = _File(f"{folder}/events.out.tfevents.{int(now):010d}.{place}")
        self._head = True
        self.size = 0

    def write(self, told: list[tuple[int, dict[str, float]]], now: float) -> None:
        event, summary, records = _tensorboard()
        buffer = io.BytesIO()
        writer = records.RecordWriter(buffer)
        if self._head:
            writer.write(event.Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
            self._head = False
        for step, values in told:
            scalars = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            message = event.Event(wall_time=now, step=step, summary=summary.Summary(value=scalars))
            writer.write(message.SerializeToString())
        data = buffer.getvalue()
        self._file.append(data)
        self.size += len(data)


def _tensorboard() -> tuple[Any, Any, Any]:
    try:
        import_module("tensorboard")
        return (
            import_module("tensorboard.compat.proto.event_pb2"),
            import_module("tensorboard.compat.proto.summary_pb2"),
            import_module("tensorboard.summary.writer.record_writer"),
        )
    except ImportError as error:
        raise MissingPackageError(
            "orca.callbacks.TensorBoard needs the package tensorboard, which cannot be imported "
            f'({error}). Run: pip install "orca-estimator[tensorboard]"'
        ) from error


def _path(path: Any) -> str:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ArgumentError(f'path={path!r}: expected a path or a URL, such as "runs/log" or "s3://bucket/runs/log".')
    return str(path)


def _joined(path: str, *names: str) -> str:
    """A path below another one, without the empty parts."""
    return "/".join([path.rstrip("/"), *(name.strip("/") for name in names if name.strip("/"))])


def _by_step(first: int, values: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Turn arrays over steps into values per step."""
    columns = {name: np.asarray(array).tolist() for name, array in values.items()}
    for index in range(max(map(len, columns.values()), default=0)):
        yield first + index, {name: column[index] for name, column in columns.items() if index < len(column)}


def numbers_of(record: dict[str, Any]) -> dict[str, float]:
    """The values that are numbers, as floats."""
    plain = {name: _plain(value, nan=True) for name, value in record.items()}
    return {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}


def _plain(value: Any, nan: bool = False) -> Any:
    """What JSON can hold, arrays and their scalars as lists and numbers; without `nan` None for NaN and infinity.

    >>> _plain({"a": np.float32(0.5), "b": float("inf"), "c": (1, np.arange(2))})
    {'a': 0.5, 'b': None, 'c': [1, [0, 1]]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if nan or math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item, nan) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, nan) for item in value]
    return _plain(value.tolist(), nan) if hasattr(value, "tolist") else str(value)


def _cell(value: Any) -> str:
    plain = _plain(value, nan=True)
    if isinstance(plain, list | dict):
        return json.dumps(plain)
    return "" if plain is None else str(plain)


def _csv(lines: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _lines(data: bytes) -> list[list[str]]:
    return [line for line in csv.reader(io.StringIO(data.decode(), newline="")) if line]


def _bare(tag: str) -> str:
    """A tag without what its spellings differ in.

    >>> _bare("Learning_Rate")
    'learningrate'
    """
    return re.sub(r"[\W_]", "", str(tag)).lower()
