"""The MLflow logger writes to real tracking stores, into its own runs or the program's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orca.errors import ArgumentError
from orca.loggers import MLflow
from tests.orca.test_loggers import ABOUT, mlflow_settings, record  # noqa: F401, a fixture for every test


@pytest.fixture(params=["file", "sqlite"])
def store(request, tmp_path, monkeypatch):
    """A separate tracking store; MLflow's global settings are restored after the test."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    if request.param == "sqlite":
        # mlflow-skinny does not install them.
        pytest.importorskip("sqlalchemy")
        pytest.importorskip("alembic")
        yield f"sqlite:///{tmp_path}/runs.db"
    else:
        yield (tmp_path / "store").as_uri()
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


def client(store):
    import mlflow

    return mlflow.MlflowClient(tracking_uri=store)


def test_mlflow_logs_params_metrics_and_tags_in_a_run_of_its_own(store):
    import mlflow

    logger = MLflow("digits", "first", store, tags={"team": "vision", "number": 3})
    logger.start(ABOUT)
    assert mlflow.active_run().info.run_id == logger.run_id
    logger.epoch(record(1))
    logger.epoch(record(2, val_loss=math.nan))
    logger.end(None)
    assert mlflow.active_run() is None
    assert not mlflow.is_tracking_uri_set()
    run = client(store).get_run(logger.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert client(store).get_experiment(run.info.experiment_id).name == "digits"
    assert run.data.params["config.lr"] == "0.1"
    assert run.data.params["config.model.layers"] == "[4, 4]"
    assert {name: run.data.params[name] for name in ("batch_size", "workers", "framework")} == {
        "batch_size": "32",
        "workers": "2",
        "framework": "torch",
    }
    assert (run.data.tags["team"], run.data.tags["number"]) == ("vision", "3")
    losses = client(store).get_metric_history(logger.run_id, "loss")
    assert [(point.step, point.value) for point in losses] == [(1, 1.0), (2, 0.5)]
    assert math.isnan(run.data.metrics["val_loss"])
    assert {"rows_per_s", "accuracy", "lr"} <= set(run.data.metrics)
    assert not {"epoch", "step"} & set(run.data.metrics)


def test_mlflow_starts_a_run_per_fit_and_marks_the_failed_one(store):
    logger = MLflow("digits", tracking_uri=store)
    ended = []
    for error in (None, RuntimeError("rank 1 died"), KeyboardInterrupt()):
        logger.start(ABOUT)
        logger.epoch(record(1))
        logger.end(error)
        ended.append(logger.run_id)
    assert len(set(ended)) == 3
    assert [client(store).get_run(run).info.status for run in ended] == ["FINISHED", "FAILED", "FAILED"]


def test_mlflow_joins_the_active_run_and_leaves_it_open(store):
    import mlflow

    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("mine")
    with mlflow.start_run() as mine:
        for epochs in (2, 5):  # parameters cannot change: the first value stays
            logger = MLflow(tags={"team": "vision"})
            logger.start({**ABOUT, "epochs": epochs})
            logger.epoch(record(epochs))
            logger.end(RuntimeError("the fit failed, the run is the user's"))
            assert mlflow.active_run().info.run_id == mine.info.run_id == logger.run_id
        mlflow.log_metric("after", 1.0)
    run = client(store).get_run(mine.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "2"
    assert run.data.metrics["after"] == 1.0
    assert run.data.tags["team"] == "vision"
    assert mlflow.get_tracking_uri() == store


def test_mlflow_follows_the_experiment_that_the_program_has_set(store):
    import mlflow

    mlflow.set_tracking_uri(store)
    chosen = mlflow.set_experiment("chosen").experiment_id
    logger = MLflow()
    logger.start(ABOUT)
    logger.end(None)
    assert client(store).get_run(logger.run_id).info.experiment_id == chosen


def test_mlflow_refuses_to_join_a_run_elsewhere(store, tmp_path):
    import mlflow

    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("mine")
    with mlflow.start_run() as mine:
        with pytest.raises(ArgumentError, match=r"experiment='other'.*belongs to 'mine'.*mlflow\.end_run"):
            MLflow(experiment="other").start(ABOUT)
        with pytest.raises(ArgumentError, match=r"tracking_uri='file:.*is stored at '"):
            MLflow(tracking_uri=(tmp_path / "elsewhere").as_uri()).start(ABOUT)
        joined = MLflow(experiment="mine", tracking_uri=store)
        joined.start(ABOUT)
        joined.end(None)
        assert mlflow.active_run().info.run_id == mine.info.run_id == joined.run_id


def test_mlflow_accepts_any_config_and_any_metric_name(store):
    config = {f"key{number}": number for number in range(250)}
    config |= {"long": "x" * 10_000, "odd@name!": 1, "..": 2, "a//b": 3, "": {}, "k" * 400: 4, "fn": len, 5: {6: 7}}
    logger = MLflow("digits", tracking_uri=store)
    logger.start({**ABOUT, "config": config})
    logger.epoch({"epoch": 1, "precision@5": 0.5, "a/b": 0.25, "list": [1, 2], "text": "x", "np": np.float32(2)})
    logger.end(None)
    run = client(store).get_run(logger.run_id)
    assert len([name for name in run.data.params if name.startswith("config.key")]) == 250
    assert len(run.data.params["config.long"]) == 6000
    assert run.data.params["config.odd_name_"] == "1"
    assert run.data.params["config.5.6"] == "7"
    assert run.data.metrics == {"precision_5": 0.5, "a/b": 0.25, "np": 2.0}


def test_mlflow_ends_as_failed_a_run_that_was_never_ended(store):
    logger = MLflow("digits", tracking_uri=store)
    logger.start(ABOUT)
    lost = logger.run_id
    logger.start(ABOUT)
    logger.end(None)
    assert logger.run_id != lost
    assert client(store).get_run(lost).info.status == "FAILED"
    assert client(store).get_run(logger.run_id).info.status == "FINISHED"


def test_mlflow_run_ends_even_if_the_user_ended_it_before(store):
    import mlflow

    logger = MLflow("digits", tracking_uri=store)
    logger.start(ABOUT)
    mlflow.end_run()
    logger.end(RuntimeError())
    assert client(store).get_run(logger.run_id).info.status == "FAILED"


def test_mlflow_that_cannot_start_leaves_nothing_behind(store):
    import mlflow

    logger = MLflow("digits", tracking_uri=store, tags={"": "a tag needs a name"})
    with pytest.raises(mlflow.exceptions.MlflowException):
        logger.start(ABOUT)
    assert mlflow.active_run() is None
    assert not mlflow.is_tracking_uri_set()
    assert client(store).get_run(logger.run_id).info.status == "FAILED"
    logger.end(None)
