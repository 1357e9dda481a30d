"""Callbacks see and act on a run; functions and loggers can be passed as well."""

from __future__ import annotations

import cloudpickle
import pytest

from orca.callbacks import BATCH_HOOKS, Callback, EarlyStopping, LambdaCallback, Logger, Progress, Run, overrides, split
from orca.errors import ArgumentError
from tests.orca.one_weight import OneWeight, losses, train


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
