"""Keras callbacks in Orca: the same on every rank, files written once, resumed from checkpoints."""

from __future__ import annotations

import os

import keras
import pytest

from orca import WorkerError
from orca.backends.keras.callbacks import adapt
from orca.backends.keras.replica import KerasReplica
from orca.callbacks import Callback, Run
from orca.context import Context
from orca.triggers import EveryEpoch
from tests.backends.test_keras import data
from tests.conformance.keras_models import estimator, model_creator, same_weights


class Watch(Callback):
    """Records what each rank sees after every epoch."""

    def __init__(self, folder):
        self.folder = str(folder)

    def after_epoch(self, run):
        with open(f"{self.folder}/{run.rank}", "a") as file:
            file.write(f"{run.epoch} {run.learning_rate} {run.record['val_loss']} {run.reason}\n")


@pytest.mark.parametrize("backend", ["multiworker", "parameter_server"])
def test_early_stopping_and_plateaus_act_the_same_on_every_rank(local: Context, backend, tmp_path):
    x, y = data()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=1e3)
    est = estimator(backend, 3, config={"lr": 1.0})
    callbacks = [plateau, stop, Watch(tmp_path)]
    history = est.fit(x, y, epochs=40, batch_size=16, validation_data=(x, 1 - y), callbacks=callbacks)
    assert 3 <= len(history) < 40
    assert "EarlyStopping" in history.stopped
    records = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert records[0] == records[1] == records[2]
    rates = [float(line.split()[1]) for line in records[0].splitlines()]
    assert rates[-1] < rates[0] == 1.0
    assert history["learning_rate"][-1] == pytest.approx(rates[-2])  # as Keras logs it: before the change
    # The user's callback objects hold the final state; the weights are those of the best epoch.
    assert stop.stopped_epoch == len(history) - 1
    best = min(history["val_loss"])
    assert stop.best == pytest.approx(best)
    assert est.evaluate(x, 1 - y)["loss"] == pytest.approx(best, rel=1e-5)


def test_files_are_written_once_and_batch_hooks_are_called(local: Context, tmp_path):
    x, y = data()

    class Count(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            assert "loss" in logs
            if self.batches == 6:
                self.model.stop_training = True

    count = Count()
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (epoch + 1))
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"))
    est = estimator("multiworker", 2)
    history = est.fit(x, y, epochs=5, batch_size=16, callbacks=[count, rates, checkpoint, log, board])
    assert len(history) == 2  # stopped in step 6, with 4 steps per epoch
    assert count.batches == 6
    assert history["lr"] == pytest.approx([0.1, 0.05])
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert os.listdir(tmp_path / "board")
    same_weights(keras.models.load_model(tmp_path / "2.keras"), est.get_model())


def test_backup_and_restore_resumes_after_the_completed_epochs(local: Context, tmp_path):
    x, y = data()
    whole = estimator("multiworker", 2)
    whole.fit(x, y, epochs=3, batch_size=16)

    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("the lights went out")

    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=True)
    with pytest.raises(WorkerError, match="the lights went out"):
        estimator("multiworker", 2).fit(x, y, epochs=3, batch_size=16, callbacks=[backup, Break()])
    est = estimator("multiworker", 2)
    history = est.fit(x, y, epochs=3, batch_size=16, callbacks=[backup])
    assert history["epoch"] == [3]
    same_weights(est.get_model(), whole.get_model())


class Broken(Callback):
    """Fails once, before an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def before_epoch(self, run):
        if run.epoch == self.epoch:
            raise RuntimeError("the lights went out")


def test_callbacks_resume_their_state_in_a_new_driver(local: Context, tmp_path):
    x, y = data(32)

    def callbacks(name, patience=2):
        log = keras.callbacks.CSVLogger(str(tmp_path / f"{name}.csv"))
        stop = keras.callbacks.EarlyStopping("val_loss", patience=patience, min_delta=1e3)
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, min_delta=1e3)
        numbers = []
        batches = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: numbers.append(batch))
        batches.numbers = numbers
        return [plateau, stop, log, batches]

    def fit(est, hooks, **more):
        return est.fit(x, y, epochs=9, batch_size=16, validation_data=(x, y), callbacks=hooks, **more)

    est = estimator("multiworker", 1)
    hooks = callbacks("whole")
    whole = fit(est, hooks)
    assert hooks[3].numbers == [0, 1] * 3
    assert len(whole) == 3  # the first epoch is the best; the rate is halved as the run stops
    assert float(est.get_model().optimizer.learning_rate) == pytest.approx(0.05)
    folder = str(tmp_path / "run")
    with pytest.raises(WorkerError, match="the lights went out"):
        hooks = [*callbacks("broken", patience=7), Broken(3)]
        fit(estimator("multiworker", 1, model_dir=folder), hooks, checkpoint_trigger=EveryEpoch())
    again = callbacks("broken")  # the current patience counts, not the larger one of the broken run
    est = estimator("multiworker", 1, model_dir=folder)
    history = fit(est, again, resume=True)
    assert history["epoch"] == [3]
    assert history.stopped == whole.stopped
    assert float(est.get_model().optimizer.learning_rate) == pytest.approx(0.05)
    lines = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in ("whole", "broken")]
    assert [len(part) for part in lines] == [4, 4]
    assert lines[0][0] == lines[1][0]


def test_only_rank_0_opens_the_files_of_a_writer(tmp_path):
    model = model_creator({})
    run = Run(KerasReplica(model), 1, 2, {})
    adapt(keras.callbacks.TensorBoard(str(tmp_path / "board"))).before_run(run)
    assert os.listdir(tmp_path) == []
