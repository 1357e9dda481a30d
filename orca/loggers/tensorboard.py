"""The logger that writes scalars for TensorBoard."""

from __future__ import annotations

import io
import itertools
import os
import re
import socket
import time
from importlib import import_module
from typing import Any

from orca.errors import ArgumentError, MissingPackageError, suggest
from orca.loggers.base import Logger
from orca.loggers.files import LogFile, check_path, join_path
from orca.loggers.values import by_step, numbers_of

_ALIASES = {"learningrate": "lr", "throughput": "rows_per_s", "top1accuracy": "accuracy"}
"""BigDL's names of scalars, as `_normalize` returns them."""


class TensorBoard(Logger):
    """Writes training scalars to ``<path>/<name>/train`` and validation scalars to ``<path>/<name>/validation``.

    Values reported per step keep their name and are plotted over steps; the same value over the whole epoch is
    called ``epoch_<name>``. A value ``val_x`` is ``x`` among the validation scalars, so that TensorBoard plots both in
    one chart. Steps are reported when their epoch ends and carry that time. `points` and `summary` hold what was
    written; steps that are reported again, as after resuming from a checkpoint, replace the earlier ones.

    >>> logger = TensorBoard("memory://runs", name="digits")
    >>> logger.start({})
    >>> logger.epoch({"epoch": 1, "step": 20, "loss": 0.5, "val_loss": 0.75})
    >>> [(step, value) for step, value, wall_time in logger.summary("validation", "Loss")]
    [(20, 0.75)]

    Args:
        path: The log folder, on any fsspec path.
        name: Subfolder of this experiment.

    Raises:
        ArgumentError: If `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        self.path = check_path(path)
        self.name = name
        self.points: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
        """(split, tag) to (step, value, wall time), split being "train" or "validation"."""
        self._files: dict[str, EventFile] = {}
        self._per_step: set[str] = set()

    def start(self, about: dict[str, Any]) -> None:
        _tensorboard()
        self._files = {}
        self._per_step = set()

    def steps(self, first: int, values: dict[str, Any]) -> None:
        self._per_step.update(values)
        self._write("train", [(step, numbers_of(numbers)) for step, numbers in by_step(first, values)])

    def scores(self, step: int, values: dict[str, Any]) -> None:
        named = {name.removeprefix("val_"): value for name, value in numbers_of(values).items()}
        self._write("validation", [(step, named)])

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
        """Return all values of a scalar as (step, value, wall time), ordered by step.

        Args:
            split: "train" or "validation".
            tag: Name of the scalar. Case and underscores are ignored, and "LearningRate", "Throughput" and
                "Top1Accuracy" mean lr, rows_per_s and accuracy.

        Raises:
            ArgumentError: If there is no such scalar.
        """
        if split not in ("train", "validation"):
            raise ArgumentError(
                f'split={split!r}: expected "train" or "validation".' + suggest(split, ("train", "validation"))
            )
        tags = [name for part, name in self.points if part == split]
        if not tags:
            fix = "Give validation_data= to fit." if split == "validation" else "Call fit with this object first."
            raise ArgumentError(f"split={split!r} has no values yet. {fix}")
        if tag in tags:
            return list(self.points[split, tag])
        by_word = {_normalize(name): name for name in tags}
        word = _normalize(tag)
        for candidate in (word, _normalize(_ALIASES.get(word, "")), word.removeprefix("val")):
            if candidate in by_word:
                return list(self.points[split, by_word[candidate]])
        raise ArgumentError(
            f"tag={tag!r} is not among the {split} scalars: {', '.join(tags)}." + suggest(str(tag).lower(), tags)
        )

    def _write(self, split: str, scalars: list[tuple[int, dict[str, float]]]) -> None:
        scalars = [(step, values) for step, values in scalars if values]
        if not scalars:
            return
        now = time.time()
        for step, values in scalars:
            for tag, value in values.items():
                points = self.points.setdefault((split, tag), [])
                while points and points[-1][0] >= step:
                    points.pop()
                points.append((step, value, now))
        # Created with the first value, so that a run without validation leaves no empty curve. A large file is
        # followed by a new one, because where appending is not supported each epoch rewrites the whole file.
        if split not in self._files or self._files[split].size > EventFile.LARGE:
            self._files[split] = EventFile(join_path(self.path, self.name, split), now)
        self._files[split].write(scalars, now)


class EventFile:
    """A file of TensorBoard events. TensorBoard's own EventFileWriter would import TensorFlow where it is installed,
    so only its record format and its messages are used."""

    LARGE = 1 << 22
    _count = itertools.count()

    def __init__(self, folder: str, now: float) -> None:
        # TensorBoard reads files with such names, in the order of their names.
        origin = f"{socket.gethostname()}.{os.getpid()}.{next(self._count):06d}"
        self._file = LogFile(f"{folder}/events.out.tfevents.{int(now):010d}.{origin}")
        self._empty = True
        self.size = 0

    def write(self, scalars: list[tuple[int, dict[str, float]]], now: float) -> None:
        """Append one event per step."""
        event, summary, records = _tensorboard()
        buffer = io.BytesIO()
        writer = records.RecordWriter(buffer)
        if self._empty:
            writer.write(event.Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
            self._empty = False
        for step, values in scalars:
            entries = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            message = event.Event(wall_time=now, step=step, summary=summary.Summary(value=entries))
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


def _normalize(tag: str) -> str:
    """Remove what different spellings of a tag differ in.

    >>> _normalize("Learning_Rate")
    'learningrate'
    """
    return re.sub(r"[\W_]", "", str(tag)).lower()
