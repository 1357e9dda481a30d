"""Loggers: what they write is read back with the tools it is for."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import orca.callbacks
import orca.loggers.tensorboard
from orca.callbacks import Logger, split
from orca.errors import ArgumentError, MissingPackageError
from orca.loggers import CSVLogger, JSONLLogger, MLflow, TensorBoard

ABOUT = {
    "backend": "torch_distributed",
    "framework": "torch",
    "workers": 2,
    "batch_size": 32,
    "epochs": 2,
    "seed": 0,
    "config": {"lr": 0.1, "model": {"width": 8, "layers": [4, 4]}},
}


def record(epoch, **more):
    values = {"epoch": epoch, "loss": 1 / epoch, "accuracy": 0.5, "lr": 0.1, "rows": 64, "seconds": 0.5}
    return {**values, "rows_per_s": 128.0, "step": 2 * epoch, **more}


class Overwriting(MemoryFileSystem):
    """A store that accepts mode "ab" and overwrites, as some object stores do."""

    protocol = ("overwriting",)
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def _open(self, path, mode="rb", **options):
        return super()._open(path, mode.replace("a", "w"), **options)


fsspec.register_implementation("overwriting", Overwriting, clobber=True)


@pytest.fixture(params=["local", "file", "memory", "overwriting"])
def folder(request, tmp_path):
    """A folder that does not exist yet, on each kind of path."""
    if request.param in ("local", "file"):
        return f"{'file://' if request.param == 'file' else ''}{tmp_path}/deep/runs"
    return f"{request.param}://{tmp_path.name}/deep/runs"


def read(path):
    with fsspec.open(path, "r", newline="") as file:
        return file.read()


def csv_rows(path):
    return list(csv.DictReader(io.StringIO(read(path), newline="")))


def json_lines(path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in read(path).splitlines()]


# CSVLogger


def test_csv_has_every_epoch_during_the_run(folder):
    logger = CSVLogger(f"{folder}/log.csv")
    logger.start(ABOUT)
    for epoch in (1, 2, 3):
        logger.epoch(record(epoch))
        rows = csv_rows(f"{folder}/log.csv")
        assert [float(row["loss"]) for row in rows] == [1 / n for n in range(1, epoch + 1)]
    logger.end(None)


def test_csv_columns_grow_and_old_lines_stay(folder):
    logger = CSVLogger(f"{folder}/log.csv")
    logger.start(ABOUT)
    logger.epoch({"epoch": 1, "loss": 0.5})
    logger.epoch({"epoch": 2, "loss": 0.25, "val_loss": 0.75})
    logger.epoch({"epoch": 3, "loss": 0.125})
    logger.epoch({"epoch": 4, "val_loss": 0.5, "note": 'a "b", c\nd'})
    assert csv_rows(f"{folder}/log.csv") == [
        {"epoch": "1", "loss": "0.5", "val_loss": "", "note": ""},
        {"epoch": "2", "loss": "0.25", "val_loss": "0.75", "note": ""},
        {"epoch": "3", "loss": "0.125", "val_loss": "", "note": ""},
        {"epoch": "4", "loss": "", "val_loss": "0.5", "note": 'a "b", c\nd'},
    ]


def test_csv_replaces_an_old_file_and_continues_in_a_second_fit(folder):
    for _ in range(2):
        logger = CSVLogger(f"{folder}/log.csv")
        for first in (1, 3):
            logger.start(ABOUT)
            logger.epoch(record(first))
            logger.epoch(record(first + 1, val_loss=0.5))
            logger.end(None)
        assert [row["epoch"] for row in csv_rows(f"{folder}/log.csv")] == ["1", "2", "3", "4"]
        assert [row["val_loss"] for row in csv_rows(f"{folder}/log.csv")] == ["", "0.5", "", "0.5"]


def test_csv_appends_to_a_file_that_another_process_left_truncated(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n1,0.5\n2,0.2")
    logger = CSVLogger(path, append=True)
    logger.start(ABOUT)
    logger.epoch({"epoch": 3, "loss": 0.125, "extra": 1})
    logger.end(None)
    assert path.read_text() == "epoch,loss,extra\n1,0.5,\n2,0.2,\n3,0.125,1\n"


def test_csv_values_read_back_as_they_were(tmp_path):
    values = {"epoch": np.int64(1), "a": np.float32(0.1), "b": math.pi, "c": math.nan, "d": -math.inf, "e": [1, 2]}
    logger = CSVLogger(tmp_path / "log.csv")
    logger.start(ABOUT)
    logger.epoch({**values, "f": None, "g": True, "h": np.array(2.5)})
    row = csv_rows(str(tmp_path / "log.csv"))[0]
    assert np.float32(row["a"]) == np.float32(0.1)
    assert float(row["b"]) == math.pi
    assert math.isnan(float(row["c"]))
    assert float(row["d"]) == -math.inf
    assert [row[name] for name in ("epoch", "e", "f", "g", "h")] == ["1", "[1, 2]", "", "True", "2.5"]


def test_csv_leaves_only_its_own_file_and_keeps_a_link(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    logger = CSVLogger(tmp_path / "link.csv")
    logger.start(ABOUT)
    logger.epoch(record(1))
    assert (tmp_path / "link.csv").is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_csv_lines_survive_a_killed_process(tmp_path):
    code = f"""
import os, signal
from orca.loggers import CSVLogger, JSONLLogger
loggers = CSVLogger({str(tmp_path / "log.csv")!r}), JSONLLogger({str(tmp_path / "log.jsonl")!r})
for logger in loggers:
    logger.start({{}})
    logger.epoch({{"epoch": 1, "loss": 0.5}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert ended.returncode == -9
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n1,0.5\n"
    assert (tmp_path / "log.jsonl").read_text() == '{"epoch": 1, "loss": 0.5}\n'


# JSONLLogger


def test_jsonl_has_one_object_per_epoch(folder):
    logger = JSONLLogger(f"{folder}/log.jsonl")
    logger.start(ABOUT)
    logger.steps(1, {"loss": np.ones(2), "lr": np.ones(2)})
    logger.epoch(record(1))
    assert json_lines(f"{folder}/log.jsonl") == [record(1)]
    logger.epoch(record(2))
    logger.end(None)
    assert json_lines(f"{folder}/log.jsonl") == [record(1), record(2)]


def test_jsonl_writes_steps_if_requested(folder):
    logger = JSONLLogger(f"{folder}/log.jsonl", steps=True)
    logger.start(ABOUT)
    logger.steps(3, {"loss": np.array([0.5, np.nan, np.inf]), "lr": np.full(3, 0.25, np.float32)})
    logger.epoch({"epoch": 2, "loss": 0.5})
    assert json_lines(f"{folder}/log.jsonl") == [
        {"step": 3, "loss": 0.5, "lr": 0.25},
        {"step": 4, "loss": None, "lr": 0.25},
        {"step": 5, "loss": None, "lr": 0.25},
        {"epoch": 2, "loss": 0.5},
    ]


def test_jsonl_has_null_for_values_that_json_cannot_represent(tmp_path):
    logger = JSONLLogger(tmp_path / "log.jsonl")
    logger.start(ABOUT)
    logger.epoch({"epoch": np.int32(1), "a": math.nan, "b": [math.inf, {"c": np.array([1.0, np.nan])}], "d": 1 + 2j})
    assert json_lines(str(tmp_path / "log.jsonl")) == [
        {"epoch": 1, "a": None, "b": [None, {"c": [1.0, None]}], "d": "(1+2j)"}
    ]


def test_jsonl_appends_to_an_old_file_by_default(folder):
    path = f"{folder}/log.jsonl"
    for _ in range(2):
        logger = JSONLLogger(path)
        logger.start(ABOUT)
        logger.epoch({"epoch": 1})
    assert json_lines(path) == [{"epoch": 1}] * 2
    logger = JSONLLogger(path, append=False)
    for epoch in (5, 6):
        logger.start(ABOUT)
        logger.epoch({"epoch": epoch})
        logger.end(None)
    assert json_lines(path) == [{"epoch": 5}, {"epoch": 6}]


def test_jsonl_starts_a_new_line_after_a_truncated_one(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"epoch": 1}\n{"epo')
    logger = JSONLLogger(path)
    logger.start(ABOUT)
    logger.epoch({"epoch": 2})
    assert path.read_text() == '{"epoch": 1}\n{"epo\n{"epoch": 2}\n'


# TensorBoard


READER = """
import json, sys, types
# Chooses TensorBoard's own file access: TensorFlow's is slow to import.
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
points = {tag: [(p.step, p.value, p.wall_time) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps(points))
"""


def events(folder):
    """Read a folder with TensorBoard itself, in a separate process."""
    run = subprocess.run(
        [sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(run.stdout)


def scalars(folder):
    """Read (step, value) of each tag with TensorBoard."""
    return {tag: [(step, pytest.approx(value)) for step, value, _ in points] for tag, points in events(folder).items()}


def fit_twice(logger):
    for first in (1, 3):
        logger.start(ABOUT)
        for epoch in (first, first + 1):
            loss = np.array([0.5, 0.25]) / epoch
            logger.steps(2 * epoch - 1, {"loss": loss, "lr": np.full(2, 0.1)})
            logger.epoch(record(epoch, val_loss=0.75 / epoch, val_accuracy=0.25, note="text"))
        logger.end(None)


def test_tensorboard_reads_train_and_validation_of_two_fits(tmp_path):
    logger = TensorBoard(tmp_path / "runs", name="digits")
    fit_twice(logger)
    train = scalars(tmp_path / "runs" / "digits" / "train")
    losses = [value for epoch in range(1, 5) for value in (0.5 / epoch, 0.25 / epoch)]
    assert train["loss"] == [(step, pytest.approx(value)) for step, value in enumerate(losses, 1)]
    assert [step for step, _ in train["lr"]] == list(range(1, 9))
    assert train["epoch_loss"] == [(2 * epoch, pytest.approx(1 / epoch)) for epoch in range(1, 5)]
    assert train["accuracy"] == [(2 * epoch, 0.5) for epoch in range(1, 5)]
    assert train["rows_per_s"] == [(2 * epoch, 128.0) for epoch in range(1, 5)]
    assert set(train) == {"loss", "lr", "epoch_loss", "epoch_lr", "accuracy", "rows_per_s"}
    validation = scalars(tmp_path / "runs" / "digits" / "validation")
    assert validation["loss"] == [(2 * epoch, pytest.approx(0.75 / epoch)) for epoch in range(1, 5)]
    assert set(validation) == {"loss", "accuracy"}


def test_tensorboard_points_are_what_the_files_hold(tmp_path):
    logger = TensorBoard(str(tmp_path))
    fit_twice(logger)
    for part in ("train", "validation"):
        for tag, points in events(tmp_path / part).items():
            logged = logger.points[part, tag]
            assert [(step, wall) for step, _, wall in logged] == [(step, wall) for step, _, wall in points]
            np.testing.assert_allclose([value for _, value, _ in logged], [value for _, value, _ in points], rtol=1e-6)
        assert {tag for split, tag in logger.points if split == part} == set(events(tmp_path / part))


def test_tensorboard_has_the_events_before_the_run_ends(tmp_path):
    logger = TensorBoard(tmp_path)
    logger.start(ABOUT)
    logger.epoch(record(1))
    assert scalars(tmp_path / "train")["loss"] == [(2, 1.0)]
    assert not (tmp_path / "validation").exists()


def test_tensorboard_accepts_nan_infinity_and_a_record_without_step(tmp_path):
    logger = TensorBoard(tmp_path)
    logger.start(ABOUT)
    logger.epoch({"epoch": 3, "loss": math.nan, "val_loss": math.inf, "huge": 1e300})
    train = events(tmp_path / "train")
    assert train["loss"][0][0] == 3
    assert math.isnan(train["loss"][0][1])
    assert train["huge"][0][1] == math.inf
    assert events(tmp_path / "validation")["loss"][0][1] == math.inf


def test_tensorboard_continues_in_a_new_file_when_one_is_large(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(orca.loggers.tensorboard.EventFile, "LARGE", 10_000)
    logger = TensorBoard(folder)
    logger.start(ABOUT)
    count = 120
    for part in range(2):
        logger.steps(1 + part * count, {"loss": np.arange(count) % 7, "lr": np.full(count, 0.5)})
    logger.steps(2 * count + 1, {"loss": np.zeros(1)})
    files, target = fsspec.core.url_to_fs(f"{folder}/train")
    assert len(files.ls(target)) == 2
    files.get(target, str(tmp_path / "copy"), recursive=True)
    assert [point[0] for point in events(tmp_path / "copy")["loss"]] == list(range(1, 2 * count + 2))


def test_tensorboard_steps_reported_again_replace_the_old_ones(tmp_path):
    logger = TensorBoard(tmp_path)
    logger.start(ABOUT)
    logger.steps(1, {"loss": np.arange(6.0)})
    logger.start(ABOUT)
    logger.steps(4, {"loss": np.array([10.0, 11.0])})
    assert [point[:2] for point in logger.summary("train", "loss")] == [(1, 0), (2, 1), (3, 2), (4, 10), (5, 11)]


def test_tensorboard_summary_ignores_spelling_and_knows_the_old_names(tmp_path):
    logger = TensorBoard(tmp_path)
    fit_twice(logger)
    for name, tag in [("Loss", "loss"), ("LearningRate", "lr"), ("learning_rate", "lr"), ("EPOCH_loss", "epoch_loss")]:
        assert logger.summary("train", name) == logger.points["train", tag]
    assert logger.summary("train", "Throughput") == logger.points["train", "rows_per_s"]
    for name in ("Top1Accuracy", "Accuracy", "val_accuracy"):
        assert logger.summary("validation", name) == logger.points["validation", "accuracy"]
    copy = logger.summary("train", "loss")
    copy.clear()
    assert logger.summary("train", "loss")


def test_tensorboard_summary_names_the_existing_scalars(tmp_path):
    logger = TensorBoard(tmp_path)
    with pytest.raises(ArgumentError, match=r"split='train' has no values yet\. Call fit"):
        logger.summary("train", "loss")
    logger.start(ABOUT)
    logger.epoch(record(1))
    with pytest.raises(ArgumentError, match=r"tag='accurcy'.*train scalars: loss, accuracy.*mean 'accuracy'"):
        logger.summary("train", "accurcy")
    with pytest.raises(ArgumentError, match="validation_data="):
        logger.summary("validation", "loss")
    with pytest.raises(ArgumentError, match=r"split='valid'.*mean 'validation'"):
        logger.summary("valid", "loss")


def test_tensorboard_imports_no_framework(tmp_path):
    code = f"""
import sys
from orca.loggers import TensorBoard
logger = TensorBoard({str(tmp_path)!r})
logger.start({{}})
logger.steps(1, {{"loss": [0.5]}})
logger.epoch({{"epoch": 1, "loss": 0.5, "val_loss": 0.5}})
logger.end(None)
print([name for name in ("torch", "tensorflow", "keras", "mlflow") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


# All


@pytest.fixture(autouse=True)
def mlflow_settings(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # since MLflow 3 files are refused without it
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_end_without_start_is_harmless(tmp_path):
    loggers = [CSVLogger(tmp_path / "a"), JSONLLogger(tmp_path / "b"), TensorBoard(tmp_path / "c"), MLflow()]
    for logger in loggers:
        logger.end(None)
        logger.end(RuntimeError("twice"))
    assert list(tmp_path.iterdir()) == []
    assert split(loggers) == ([], loggers)
    assert all(isinstance(logger, Logger) for logger in loggers)


def test_callbacks_has_the_loggers_by_name():
    assert orca.callbacks.CSVLogger is CSVLogger
    assert orca.callbacks.JSONLLogger is JSONLLogger
    assert orca.callbacks.MLflow is MLflow
    assert orca.callbacks.TensorBoard is TensorBoard


@pytest.mark.parametrize(
    ("make", "package", "words"),
    [
        (lambda path: TensorBoard(path), "tensorboard", r'pip install "orca-estimator\[tensorboard\]"'),
        (lambda path: MLflow(), "mlflow", "pip install mlflow"),
        (lambda path: MLflow(tracking_uri=f"sqlite:///{path}/x.db"), "sqlalchemy", "pip install mlflow"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, make, package, words):
    pytest.importorskip("mlflow")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    logger = make(tmp_path)
    with pytest.raises(MissingPackageError, match=words) as caught:
        logger.start(ABOUT)
    assert package in str(caught.value)
    logger.end(None)


def test_invalid_arguments_are_named(tmp_path):
    for make in (CSVLogger, JSONLLogger, TensorBoard):
        with pytest.raises(ArgumentError, match="path=5: expected a path or a URL"):
            make(5)
        with pytest.raises(ArgumentError, match="path=''"):
            make("")
    for make in (CSVLogger, JSONLLogger):
        with pytest.raises(ArgumentError, match=r"path=.* is a folder\. Name a file in it"):
            make(tmp_path).start(ABOUT)
    with pytest.raises(ArgumentError, match=r"tags=\['a'\]: expected a dict"):
        MLflow(tags=["a"])
