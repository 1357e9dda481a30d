"""LRScheduler gives the rates of a plain torch loop, also across checkpoints and fits."""

from __future__ import annotations

import functools
import warnings

import cloudpickle
import pytest
import torch

from orca.callbacks import LRScheduler, Run
from orca.errors import ArgumentError
from tests.orca.one_weight import OneWeight, losses, saved_and_read, train

schedulers = torch.optim.lr_scheduler


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
