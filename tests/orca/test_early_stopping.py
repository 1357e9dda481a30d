"""EarlyStopping ends runs whose results no longer improve, and restores the best model."""

from __future__ import annotations

import math

import cloudpickle
import numpy as np
import pytest

from orca.callbacks import EarlyStopping, LambdaCallback, Run, less_is_better
from orca.errors import ArgumentError
from tests.orca.one_weight import OneWeight, losses, saved_and_read, train


@pytest.mark.parametrize(("patience", "last"), [(0, 3), (1, 4), (2, 5), (9, 6)])
def test_early_stopping_tolerates_patience_many_bad_epochs(patience, last):
    stopping = EarlyStopping(patience=patience)
    run = train([stopping], losses(3.0, 2.0, 2.5, 2.0, 2.25, 2.5))
    assert run.epoch == last
    assert (stopping.best, stopping.best_epoch) == (2.0, 2)
    assert stopping.stopped_epoch == (last if patience < 9 else 0)
    if patience < 9:
        assert "val_loss did not improve on 2 " in run.reason


def test_early_stopping_restarts_its_count_after_an_improvement():
    run = train([EarlyStopping(patience=1)], losses(3.0, 3.5, 2.0, 2.5, 1.0, 1.5, 1.5, 0.0))
    assert run.epoch == 7


@pytest.mark.parametrize(
    ("monitor", "mode", "values", "last"),
    [
        ("val_accuracy", "auto", (0.5, 0.75, 0.7, 0.9), 3),
        ("loss", "auto", (0.5, 0.4, 0.45, 0.1), 3),
        ("loss", "max", (0.5, 0.75, 0.7, 0.9), 3),
        ("accuracy", "min", (0.5, 0.4, 0.45, 0.1), 3),
    ],
)
def test_early_stopping_knows_the_direction_of_improvement(monitor, mode, values, last):
    assert train([EarlyStopping(monitor, mode=mode)], losses(*values, name=monitor)).epoch == last


@pytest.mark.parametrize("min_delta", [0.5, -0.5])
def test_early_stopping_ignores_improvements_below_min_delta(min_delta):
    assert train([EarlyStopping(min_delta=min_delta)], losses(3.0, 2.0, 1.75, 0.0)).epoch == 3
    assert train([EarlyStopping("up", min_delta=min_delta)], losses(1.0, 2.0, 2.25, 9.0, name="up")).epoch == 3


def test_early_stopping_has_a_baseline_to_beat():
    assert train([EarlyStopping(baseline=1.0, patience=1)], losses(3.0, 2.0, 0.5)).epoch == 2
    assert train([EarlyStopping(baseline=1.0, patience=2)], losses(3.0, 2.0, 0.5, 0.25)).epoch == 4


def test_early_stopping_counts_nan_as_no_improvement():
    stopping = EarlyStopping(patience=1)
    assert train([stopping], losses(math.nan, math.nan, 1.0)).epoch == 2
    assert stopping.best is None


def test_early_stopping_restores_the_best_model():
    run = train([EarlyStopping(patience=1, restore_best=True)], losses(3.0, 2.0, 2.5, 2.5))
    assert run.epoch == 4
    assert run.replica.weight == 4.0  # two epochs of two steps
    assert train([EarlyStopping(patience=1)], losses(3.0, 2.0, 2.5, 2.5)).replica.weight == 8.0


def test_early_stopping_restores_the_best_model_even_without_stopping():
    run = train([EarlyStopping(patience=5, restore_best=True)], losses(3.0, 1.0, 2.0))
    assert run.reason is None
    assert run.replica.weight == 4.0
    assert train([EarlyStopping(restore_best=True)], losses(3.0, 2.0, 1.0)).replica.weight == 6.0


def test_early_stopping_resumes_from_a_checkpoint(tmp_path):
    values = (3.0, 2.0, 2.5, 2.5, 2.5)
    stopping = EarlyStopping(patience=2, restore_best=True)
    # A checkpoint holds what `state` returns after epoch 3, inside the run.
    states = []
    watch = LambdaCallback(after_epoch=lambda run: states.append((stopping.state(), run.snapshot())))
    train([stopping, watch], losses(*values[:3]))
    state, model = states[-1]
    resumed = EarlyStopping(patience=2, restore_best=True)
    resumed.load_state(saved_and_read(tmp_path, state))
    replica = OneWeight()
    replica.load_state(model)
    again = Run(replica, 0, 1, {})
    again.resumed = True
    run = train([resumed], losses(*values[3:]), run=again, first=4)
    assert run.epoch == 5
    assert (resumed.best, resumed.best_epoch) == (2.0, 2)
    assert replica.weight == 4.0


def test_early_stopping_can_be_sent_to_the_ranks():
    stopping = cloudpickle.loads(cloudpickle.dumps(EarlyStopping("loss", patience=3, min_delta=0.5)))
    assert (stopping.monitor, stopping.patience, stopping.min_delta) == ("loss", 3, 0.5)


def test_early_stopping_names_invalid_arguments():
    with pytest.raises(ArgumentError, match=r"monitor='val_loss'.*loss.*Give validation_data= to fit"):
        train([EarlyStopping()], losses(1.0, name="loss"))
    with pytest.raises(ArgumentError, match=r"monitor='acuracy'.*Did you mean 'accuracy'"):
        train([EarlyStopping("acuracy")], losses(1.0, name="accuracy"))
    with pytest.raises(ArgumentError, match="mode='down'"):
        EarlyStopping(mode="down")
    for patience in (-1, 1.5, True, "2"):
        with pytest.raises(ArgumentError, match="patience="):
            EarlyStopping(patience=patience)


@pytest.mark.parametrize(
    ("name", "less"),
    [("loss", True), ("val_mse", True), ("RMSE", True), ("mae", True), ("accuracy", False), ("val_auc", False)],
)
def test_direction_is_inferred_from_the_name(name, less):
    assert less_is_better(name) is less


def test_early_stopping_skips_epochs_without_validation():
    records = [{"loss": 1.0}, {"loss": 1.0, "val_loss": 1.0}, {"loss": 1.0}, {"loss": 1.0, "val_loss": 2.0}]
    assert train([EarlyStopping()], records).epoch == 4


def test_early_stopping_is_patient_again_in_a_second_fit():
    stopping = EarlyStopping(patience=1)
    run = train([stopping], losses(1.0, 2.0, 2.0))
    assert run.epoch == 3
    assert train([stopping], losses(3.0, 0.5), run=run, first=4).epoch == 5


def test_numpy_results_count_as_numbers():
    stopping = EarlyStopping("loss")
    train([stopping], losses(np.float32(2.0), np.float64(1.0), name="loss"))
    assert stopping.best == 1.0
