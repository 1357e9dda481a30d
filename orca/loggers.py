"""Loggers: write what a run reports to csv, JSON lines, TensorBoard or MLflow, from the driver."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import posixpath
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
        self._write("train", [(step, _numbers(told)) for step, told in _by_step(first, values)])

    def epoch(self, record: dict[str, Any]) -> None:
        step = int(record["epoch"] if record.get("step") is None else record["step"])
        train: dict[str, float] = {}
        validation: dict[str, float] = {}
        for name, value in _numbers(record).items():
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


class MLflow(Logger):
    """Logs to MLflow: settings and config as parameters, the values of each epoch as metrics.

    If the program has an active run, it is joined and left open. Otherwise a run is begun, called `run_name`, in
    `experiment` at `tracking_uri` (each is MLflow's own choice if not given), and ended with the fit. `run_id` says
    which run it was. MLflow never changes a parameter: in a joined run the first value stays.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        tags: dict[str, Any] | None = None,
    ) -> None:
        if tags is not None and not isinstance(tags, dict):
            raise ArgumentError(f'tags={tags!r}: expected a dict such as {{"team": "vision"}}, or None.')
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self.tags = tags
        self.run_id: str | None = None
        self._client: Any = None
        self._begun = False
        self._restore: tuple[str | None] | None = None
        """The tracking URI to go back to, in a tuple because None is one."""

    def start(self, about: dict[str, Any]) -> None:
        mlflow = _mlflow()
        # A fit that never came to its end must not pass for a run of the user's.
        self._end("FAILED")
        active = mlflow.active_run()
        try:
            if active is None:
                self._move(mlflow)
            self._client = _client(mlflow, mlflow.get_tracking_uri())
            if active is not None:
                self._check_same(mlflow, active.info)
                self.run_id = active.info.run_id
            else:
                place = {} if self.experiment is None else {"experiment_id": self._experiment_id()}
                self.run_id = mlflow.start_run(run_name=self.run_name, **place).info.run_id
                self._begun = True
            self._describe(mlflow.entities, about)
        except BaseException:
            self._end("FAILED")
            raise

    def epoch(self, record: dict[str, Any]) -> None:
        entities = _mlflow().entities
        now = int(time.time() * 1000)
        metrics = [
            entities.Metric(_mlflow_name(name), value, now, int(record["epoch"]))
            for name, value in _numbers(record).items()
            if name not in ("epoch", "step")
        ]
        self._client.log_batch(self.run_id, metrics=metrics)

    def end(self, error: BaseException | None) -> None:
        self._end("FINISHED" if error is None else "FAILED")

    def _move(self, mlflow: Any) -> None:
        """Make `tracking_uri` the place for new runs until the end of this one."""
        if self.tracking_uri is not None:
            self._restore = (mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None,)
            mlflow.set_tracking_uri(self.tracking_uri)

    def _check_same(self, mlflow: Any, active: Any) -> None:
        """Refuse to join a run that lies elsewhere than was asked for."""
        fix = "End that run first with mlflow.end_run(), or leave the argument out to join it."
        if self.tracking_uri is not None:
            # Two spellings can mean one place, so the place is asked rather than its name compared.
            try:
                _client(mlflow, str(self.tracking_uri)).get_run(active.run_id)
            except mlflow.exceptions.MlflowException as error:
                raise ArgumentError(
                    f"tracking_uri={str(self.tracking_uri)!r}: the active MLflow run {active.run_id} is not there but "
                    f"at {mlflow.get_tracking_uri()!r}. {fix}"
                ) from error
        if self.experiment is not None:
            name = self._client.get_experiment(active.experiment_id).name
            if name != self.experiment:
                raise ArgumentError(
                    f"experiment={self.experiment!r}: the active MLflow run {active.run_id} belongs to {name!r}. {fix}"
                )

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        return str(known.experiment_id if known is not None else self._client.create_experiment(self.experiment))

    def _describe(self, entities: Any, about: dict[str, Any]) -> None:
        known = self._client.get_run(self.run_id).data.params
        told = {_mlflow_name(name): str(value)[:PARAMETER_LENGTH] for name, value in _flat(about)}
        params = [entities.Param(name, value) for name, value in told.items() if name not in known]
        tags = [entities.RunTag(str(name), str(value)) for name, value in (self.tags or {}).items()]
        for entries, kind in ((params, "params"), (tags, "tags")):
            for low in range(0, len(entries), 100):  # the most that MLflow takes at once
                self._client.log_batch(self.run_id, **{kind: entries[low : low + 100]})

    def _end(self, status: str) -> None:
        if self._client is None and self._restore is None:
            return
        client, begun, restore = self._client, self._begun, self._restore
        self._client, self._begun, self._restore = None, False, None
        mlflow = _mlflow()
        try:
            active = mlflow.active_run()
            if begun and active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status)
            elif begun:
                # It is not this thread's active run any more, but it is still ours to end.
                client.set_terminated(self.run_id, status)
        finally:
            if restore is not None:
                mlflow.set_tracking_uri(restore[0])


PARAMETER_LENGTH = 6000
"""The longest value of a parameter that MLflow takes."""

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


def _mlflow() -> Any:
    try:
        import_module("mlflow.entities")
        return import_module("mlflow")
    except ImportError as error:
        raise MissingPackageError(
            f"orca.callbacks.MLflow needs the package mlflow, which cannot be imported ({error}). Run: pip install "
            "mlflow, or pip install mlflow-skinny if a tracking server keeps the runs."
        ) from error


def _client(mlflow: Any, uri: str) -> Any:
    if uri.split(":")[0].split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        for package in ("sqlalchemy", "alembic"):
            try:
                import_module(package)
            except ImportError as error:
                raise MissingPackageError(
                    f"tracking_uri={uri!r} is a database, for which MLflow needs {package}; mlflow-skinny does not "
                    "bring it. Run: pip install mlflow, or give the tracking_uri of a server."
                ) from error
    return mlflow.MlflowClient(tracking_uri=uri)


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


def _numbers(record: dict[str, Any]) -> dict[str, float]:
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


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested dicts.

    >>> list(_flat({"epochs": 3, "config": {"lr": 0.1}}))
    [('epochs', 3), ('config.lr', 0.1)]
    """
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _mlflow_name(name: str) -> str:
    """A name that MLflow takes, which has to be good as a path of a file too.

    >>> _mlflow_name("precision@5"), _mlflow_name("../x")
    ('precision_5', '___x')
    """
    name = re.sub(r"[^\w.\- /]", "_", str(name))[:250]
    path = posixpath.normpath(name)
    return re.sub(r"[./]", "_", name) if path != name or path.startswith((".", "/")) else name
