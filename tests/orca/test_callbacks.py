"""Callbacks and triggers, in a run of a single rank with a real torch model and no gang."""

from __future__ import annotations

import functools
import math
import warnings

import cloudpickle
import numpy as np
import pytest
import torch

from orca.backends.base import Outcome, Replica
from orca.callbacks import (
    BATCH_HOOKS,
    Callback,
    EarlyStopping,
    LambdaCallback,
    Logger,
    LRScheduler,
    ModelCheckpoint,
    Progress,
    Run,
    less_is_better,
    overrides,
    split,
)
from orca.errors import ArgumentError
from orca.runs import saved_states
from orca.triggers import EveryEpoch, SeveralIteration, Trigger, as_trigger

schedulers = torch.optim.lr_scheduler


class OneWeight(Replica):
    """A replica whose model is one number: each step adds 1 to it, with SGD, whatever the batch."""

    def __init__(self, lr: float = 1.0) -> None:
        self.inner_model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.inner_model.weight)
        self.inner_optimizer = torch.optim.SGD(self.inner_model.parameters(), lr=lr)

    @property
    def weight(self) -> float:
        return float(self.inner_model.weight.detach())

    def train_step(self, batch, want_output):
        self.inner_optimizer.zero_grad()
        (-self.inner_model.weight).sum().backward()
        self.inner_optimizer.step()
        return Outcome(self.weight, 1.0)

    def evaluate_step(self, data, want_output):
        return Outcome(self.weight, 1.0)

    def predict_step(self, features):
        return features * self.weight

    def state(self):
        # Copied, because a state must outlive the steps that follow it.
        optimizer = self.inner_optimizer.state_dict()["param_groups"]
        return {"weight": self.inner_model.weight.detach().numpy().copy(), "groups": [dict(g) for g in optimizer]}

    def load_state(self, state):
        with torch.no_grad():
            self.inner_model.weight.copy_(torch.from_numpy(state["weight"]))
        self.inner_optimizer.load_state_dict({"state": {}, "param_groups": state["groups"]})

    def learning_rate(self):
        return float(self.inner_optimizer.param_groups[0]["lr"])


def train(callbacks, records, *, run=None, first=1, steps=2):
    """Drive callbacks through one epoch per record as a rank does; return the run."""
    run = run or Run(OneWeight(), 0, 1, {"gamma": 0.5})
    run.reason, run.batches, run.last_epoch = None, steps, first + len(records) - 1
    run.validates = any(name.startswith("val_") for record in records for name in record)
    run.rates = []
    for callback in callbacks:
        callback.before_run(run)
    for epoch, record in enumerate(records, first):
        run.epoch, run.batch, run.record = epoch, 0, {}
        for callback in callbacks:
            callback.before_epoch(run)
        for _ in range(steps):
            for callback in callbacks:
                callback.before_batch(run)
            run.rates.append(run.learning_rate)
            run.loss = run.replica.train_step(None, False).loss_sum
            run.batch += 1
            run.step += 1
            for callback in callbacks:
                callback.after_batch(run)
        run.record = {"epoch": epoch, **record}
        for callback in callbacks:
            callback.after_epoch(run)
        if run.reason is not None:
            break
    for callback in callbacks:
        callback.after_run(run)
    return run


def losses(*values, name="val_loss"):
    return [{name: value} for value in values]


def saved_and_read(tmp_path, state):
    """Return a callback's state as a checkpoint restores it."""
    saved_states.save(str(tmp_path / "state"), {}, state)
    return saved_states.load(str(tmp_path / "state"))[1]


# Run


def test_run_shows_the_model_and_acts_on_it():
    replica = OneWeight(lr=0.25)
    run = Run(replica, 1, 3, {"a": 1})
    assert (run.rank, run.world, run.config) == (1, 3, {"a": 1})
    assert run.model is replica.inner_model
    assert run.optimizer is replica.inner_optimizer
    assert run.learning_rate == 0.25
    snapshot = run.snapshot()
    replica.train_step(None, False)
    assert replica.weight == 0.25
    run.restore(snapshot)
    assert replica.weight == 0.0
    run.save("a")
    run.save("b", remove="a")
    assert run.saves == [("a", None), ("b", "a")]
    assert run.reason is None
    run.stop()
    assert run.reason


# EarlyStopping


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


# ModelCheckpoint


def kept_folders(saves):
    """Return the folders that exist after saves and removals, in order."""
    folders = []
    for path, remove in saves:
        folders = [folder for folder in folders if folder not in (path, remove)] + [path]
    return [folder.rpartition("/")[2] for folder in folders]


def test_model_checkpoint_keeps_the_last():
    saving = ModelCheckpoint("runs/")
    run = train([saving], losses(3.0, 1.0, 2.0))
    assert run.saves == [
        ("runs/epoch-0001", None),
        ("runs/epoch-0002", "runs/epoch-0001"),
        ("runs/epoch-0003", "runs/epoch-0002"),
    ]
    assert saving.best_path == "runs/epoch-0003"


@pytest.mark.parametrize(("keep", "epochs"), [(1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])])
def test_model_checkpoint_keeps_the_given_number(keep, epochs):
    run = train([ModelCheckpoint("runs", keep=keep)], losses(3.0, 1.0, 2.0, 4.0))
    assert kept_folders(run.saves) == [f"epoch-{epoch:04d}" for epoch in epochs]


@pytest.mark.parametrize(
    ("monitor", "mode", "keep", "epochs", "best"),
    [
        ("val_loss", "auto", 1, [3], 3),
        ("val_loss", "auto", 2, [3, 5], 3),
        ("val_loss", "max", 1, [4], 4),
        ("val_accuracy", "auto", 2, [1, 4], 4),
        ("val_loss", "auto", None, [1, 2, 3, 4, 5], 3),
    ],
)
def test_model_checkpoint_keeps_the_best(monitor, mode, keep, epochs, best):
    saving = ModelCheckpoint("runs", monitor=monitor, mode=mode, keep=keep)
    run = train([saving], losses(4.0, 3.0, 1.0, 5.0, 2.0, name=monitor))
    assert sorted(kept_folders(run.saves)) == [f"epoch-{epoch:04d}" for epoch in epochs]
    assert saving.best_path == f"runs/epoch-{best:04d}"
    assert saving.best == {3: 1.0, 4: 5.0}[best]


def test_model_checkpoint_does_not_save_what_is_no_better():
    run = train([ModelCheckpoint("runs", monitor="loss")], losses(2.0, 2.0, math.nan, 3.0, name="loss"))
    assert run.saves == [("runs/epoch-0001", None)]


def test_model_checkpoint_resumes_from_a_checkpoint(tmp_path):
    saving = ModelCheckpoint("runs", monitor="val_loss", keep=2)
    train([saving], losses(3.0, 1.0))
    resumed = ModelCheckpoint("runs", monitor="val_loss", keep=2)
    resumed.load_state(saved_and_read(tmp_path, saving.state()))
    run = train([resumed], losses(2.0, 5.0), first=3)
    assert run.saves == [("runs/epoch-0003", "runs/epoch-0001")]
    assert resumed.best_path == "runs/epoch-0002"


def test_model_checkpoint_never_removes_what_it_keeps():
    saving = ModelCheckpoint("runs", monitor="loss", keep=2)
    run = train([saving], losses(9.0, 0.5, name="loss"))
    train([saving], losses(0.4, 0.3, name="loss"), run=run, first=2)
    assert {folder.rpartition("/")[2] for _, folder in saving.saved} == set(kept_folders(run.saves))


def test_model_checkpoint_saves_the_last_epochs_of_another_estimator_too():
    saving = ModelCheckpoint("runs")
    train([saving], losses(1.0, 1.0, 1.0))
    assert kept_folders(train([saving], losses(1.0, 1.0)).saves) == ["epoch-0002"]


def test_model_checkpoint_names_invalid_arguments():
    with pytest.raises(ArgumentError, match=r"monitor='val_loss'.*Give validation_data="):
        train([ModelCheckpoint("runs", monitor="val_loss")], losses(1.0, name="loss"))
    for keep in (0, -1, True, 1.0, "all"):
        with pytest.raises(ArgumentError, match="keep="):
            ModelCheckpoint("runs", keep=keep)


# LRScheduler


def step_lr(optimizer, config):
    return schedulers.StepLR(optimizer, 1, gamma=config["gamma"])


def rates_alone(make, epochs, steps=2, per="epoch"):
    """Return the learning rates of a plain torch loop."""
    replica = OneWeight()
    scheduler = make(replica.inner_optimizer)
    rates = []
    for _ in range(epochs):
        for _ in range(steps):
            rates.append(replica.learning_rate())
            replica.train_step(None, False)
            if per == "step":
                scheduler.step()
        if per == "epoch":
            scheduler.step()
    return rates


def test_scheduler_gets_the_config_if_it_takes_it():
    assert train([LRScheduler(step_lr)], losses(1, 1, 1)).rates == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    without = LRScheduler(lambda optimizer: schedulers.StepLR(optimizer, 1, gamma=0.5))
    assert train([without], losses(1, 1)).rates == [1.0, 1.0, 0.5, 0.5]
    partial = LRScheduler(functools.partial(schedulers.StepLR, step_size=1, gamma=0.5))
    assert train([partial], losses(1, 1)).rates == [1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize("per", ["epoch", "step"])
@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.ExponentialLR(o, 0.5),
        lambda o: schedulers.CosineAnnealingLR(o, 5),
        lambda o: schedulers.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
        lambda o: schedulers.LinearLR(o, 0.25, total_iters=4),
        lambda o: schedulers.MultiStepLR(o, [1, 3]),
    ],
)
def test_scheduler_gives_the_rates_of_a_plain_loop(per, make):
    assert train([LRScheduler(make, per=per)], losses(*[1.0] * 4)).rates == rates_alone(make, 4, per=per)


def test_scheduler_steps_after_every_batch():
    assert train([LRScheduler(step_lr, per="step")], losses(1, 1)).rates == [1.0, 0.5, 0.25, 0.125]
    assert train([LRScheduler(step_lr, per="batch")], losses(1, 1)).rates == [1.0, 0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("monitor", "rates"),
    [(None, [1.0, 1.0, 1.0, 0.5]), ("loss", [1.0, 1.0, 0.5, 0.25])],
)
def test_plateau_scheduler_sees_the_validation_loss_or_the_monitored_value(monitor, rates):
    plateau = LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0), monitor=monitor)
    records = [{"loss": 1.0, "val_loss": value} for value in (3.0, 2.0, 2.0, 1.0)]
    assert train([plateau], records, steps=1).rates == rates


def test_plateau_scheduler_sees_the_loss_without_validation():
    plateau = LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0))
    assert train([plateau], losses(1.0, 1.0, 1.0, name="loss"), steps=1).rates == [1.0, 1.0, 0.5]


RECURRENT = [
    lambda o: schedulers.StepLR(o, 2, gamma=0.5),
    lambda o: schedulers.ExponentialLR(o, 0.5),
    lambda o: schedulers.CosineAnnealingLR(o, 8),
    lambda o: schedulers.MultiStepLR(o, [1, 3], gamma=0.5),
]
"""These compute each rate from the previous one."""

FROM_THE_START = [
    lambda o: schedulers.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    lambda o: schedulers.LinearLR(o, 0.25, total_iters=6),
    lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=20),
]
"""Creating one of these changes the optimizer's rate."""


def resumed_rates(tmp_path, make, per="epoch"):
    """Return the rates of two epochs, and of two more after a checkpoint with another optimizer."""
    scheduler = LRScheduler(make, per=per)
    before = train([scheduler], losses(1, 1))
    state = saved_and_read(tmp_path, {"callback": scheduler.state(), "model": before.snapshot()})
    replica = OneWeight()
    replica.load_state(state["model"])
    resumed = LRScheduler(make, per=per)
    resumed.load_state(state["callback"])
    after = train([resumed], losses(1, 1), run=Run(replica, 0, 1, {}), first=3)
    return before.rates + after.rates


@pytest.mark.parametrize("make", RECURRENT + FROM_THE_START)
def test_scheduler_resumes_from_a_checkpoint(tmp_path, make):
    assert resumed_rates(tmp_path, make) == pytest.approx(rates_alone(make, 4))


@pytest.mark.parametrize("make", RECURRENT + FROM_THE_START)
def test_scheduler_continues_in_a_second_fit_of_a_warm_rank(make):
    # The callback is sent to the driver and back; the optimizer stays on the rank.
    scheduler = LRScheduler(make)
    run = train([scheduler], losses(1, 1))
    rates = run.rates
    again = cloudpickle.loads(cloudpickle.dumps(scheduler))
    assert rates + train([again], losses(1, 1), run=run, first=3).rates == pytest.approx(rates_alone(make, 4))


def test_plateau_scheduler_remembers_its_best_in_a_checkpoint(tmp_path):
    scheduler = LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0))
    run = train([scheduler], losses(1.0))
    resumed = LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0))
    resumed.load_state(saved_and_read(tmp_path, scheduler.state()))
    train([resumed], losses(2.0), run=run, first=2)
    assert run.learning_rate == 0.5


def test_plateau_scheduler_does_not_mix_losses():
    plateau = LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0))
    records = [{"loss": 1.0}, {"loss": 0.9, "val_loss": 2.0}, {"loss": 0.8}, {"loss": 0.7, "val_loss": 1.5}]
    assert train([plateau], records, steps=1).learning_rate == 1.0


def test_monitor_has_no_effect_on_a_scheduler_that_takes_no_result():
    scheduler = LRScheduler(step_lr, monitor="loss")
    assert train([scheduler], losses(3.0, 3.0, name="loss"), steps=1).rates == [1.0, 0.5]


def test_nested_scheduler_continues_in_a_second_fit():
    def nested(optimizer):
        parts = [schedulers.ConstantLR(optimizer, 0.5, 1), schedulers.MultiStepLR(optimizer, [1, 2])]
        return schedulers.SequentialLR(optimizer, parts, [1])

    scheduler = LRScheduler(nested)
    run = train([scheduler], losses(1, 1))
    rates = run.rates
    again = cloudpickle.loads(cloudpickle.dumps(scheduler))
    assert rates + train([again], losses(1, 1), run=run, first=3).rates == pytest.approx(rates_alone(nested, 4))


def test_scheduler_causes_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train([LRScheduler(step_lr)], losses(1, 1))


def test_scheduler_names_invalid_arguments():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(ArgumentError, match=r"expected a function fn\(optimizer, config\)"):
        LRScheduler(schedulers.StepLR(optimizer, 1))
    with pytest.raises(ArgumentError, match="per='day'"):
        LRScheduler(step_lr, per="day")
    with pytest.raises(ArgumentError, match="monitor='val_loss' is not among the results: epoch, loss"):
        train([LRScheduler(lambda o: schedulers.ReduceLROnPlateau(o), monitor="val_loss")], losses(1.0, name="loss"))


# LambdaCallback and split


def test_lambda_callback_calls_its_functions_as_hooks():
    calls = []
    hooks = {
        name: (lambda run, name=name: calls.append((name, run.epoch, run.batch)))
        for name in ("before_run", "before_epoch", "before_batch", "after_batch", "after_epoch", "after_run")
    }
    train([LambdaCallback(**hooks)], losses(1.0), steps=1)
    assert calls == [
        ("before_run", 0, 0),
        ("before_epoch", 1, 0),
        ("before_batch", 1, 0),
        ("after_batch", 1, 1),
        ("after_epoch", 1, 1),
        ("after_run", 1, 1),
    ]


def test_lambda_callback_overrides_only_the_given_hooks():
    callback = LambdaCallback(after_batch=lambda run: None)
    assert [hook for hook in BATCH_HOOKS if overrides(callback, hook)] == ["after_batch"]
    assert not overrides(LambdaCallback(), "after_batch")
    assert not overrides(Callback(), "after_batch")


def test_lambda_callback_can_be_sent_to_the_ranks():
    factor = 3
    callback = LambdaCallback(after_epoch=lambda run: run.record.update(tripled=factor * run.record["loss"]))
    copy = cloudpickle.loads(cloudpickle.dumps(callback))
    assert train([copy], losses(2.0, name="loss")).record["tripled"] == 6.0
    assert overrides(copy, "after_epoch")
    assert not overrides(copy, "after_batch")


def test_lambda_callback_names_the_existing_hooks():
    with pytest.raises(ArgumentError, match=r"no hook 'on_epoch_end'\. Hooks: before_run, .*on_gradients"):
        LambdaCallback(on_epoch_end=print)


def test_callbacks_may_stop_the_run_within_an_epoch():
    run = train([LambdaCallback(after_batch=lambda run: run.stop("enough"))], losses(1.0, 1.0))
    assert (run.epoch, run.reason) == (1, "enough")


class Noting(Callback, Logger):
    """A callback and a logger at once."""


def test_split_separates_callbacks_and_loggers():
    callback, logger = Callback(), Progress()
    assert split(None) == ([], [])
    assert split([]) == ([], [])
    assert split(callback) == ([callback], [])
    assert split(logger) == ([], [logger])
    assert split((logger, callback, logger)) == ([callback], [logger, logger])
    both = Noting()
    assert split([both]) == ([both], [both])


def test_split_names_objects_that_are_neither():
    with pytest.raises(ArgumentError, match="callbacks= holds the class EarlyStopping"):
        split([EarlyStopping])
    with pytest.raises(ArgumentError, match="callbacks= holds a function"):
        split([Callback(), lambda run: None])
    with pytest.raises(ArgumentError, match="callbacks= holds a str"):
        split("early stopping")


# Triggers


def due(trigger, count=6):
    steps = [step for step in range(1, count + 1) if trigger.after_step(step)]
    epochs = [epoch for epoch in range(1, count + 1) if trigger.after_epoch(epoch)]
    return steps, epochs


def test_triggers_are_due_at_their_interval():
    assert due(Trigger()) == ([], [])
    assert due(EveryEpoch()) == ([], [1, 2, 3, 4, 5, 6])
    assert due(EveryEpoch(3)) == ([], [3, 6])
    assert due(SeveralIteration(2)) == ([2, 4, 6], [])


def test_triggers_have_short_forms():
    mine = SeveralIteration(7)
    assert as_trigger(None) is None
    assert as_trigger(mine) is mine
    assert as_trigger(EveryEpoch) == EveryEpoch(1)
    assert as_trigger("epoch") == EveryEpoch(1)
    assert as_trigger(5) == SeveralIteration(5)


def test_custom_triggers_are_accepted():
    class AtTen(Trigger):
        def after_step(self, step):
            return step == 10

    trigger = as_trigger(AtTen)
    assert due(cloudpickle.loads(cloudpickle.dumps(trigger)), 20) == ([10], [])


def test_triggers_name_invalid_arguments():
    for trigger in ("day", 1.5, True, [1], int):
        with pytest.raises(ArgumentError, match="checkpoint_trigger="):
            as_trigger(trigger)
    for interval in (0, -1, 1.5, True, "3"):
        with pytest.raises(ArgumentError, match=r"EveryEpoch\(.*at least 1"):
            EveryEpoch(interval)
        with pytest.raises(ArgumentError, match=r"SeveralIteration\(.*at least 1"):
            SeveralIteration(interval)
    with pytest.raises(ArgumentError, match="at least 1"):
        as_trigger(0)


def test_trigger_class_that_needs_an_interval_is_refused():
    with pytest.raises(ArgumentError, match="checkpoint_trigger="):
        as_trigger(SeveralIteration)


def test_numpy_results_count_as_numbers():
    stopping = EarlyStopping("loss")
    train([stopping], losses(np.float32(2.0), np.float64(1.0), name="loss"))
    assert stopping.best == 1.0
