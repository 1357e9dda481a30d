"""Runs that continue with fewer workers: what they report, when they give up, and how they start."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError
from orca.callbacks import JSONLLogger
from orca.context import Context
from orca.errors import ArgumentError, ResourceError
from orca.testing.elastic import Room
from orca.testing.faults import Fault
from tests.conformance.models import make_data, model_creator, optimizer_creator


def estimator(workers: int, **more) -> Estimator:
    parts = {"model": model_creator, "optimizer": optimizer_creator, "loss": nn.CrossEntropyLoss()}
    return Estimator.from_torch(**{**parts, "config": {"lr": 0.1}, "workers": workers, "seed": 5, **more})


def test_metrics_validation_and_step_logs_are_those_of_an_undisturbed_run(local: Context, tmp_path, caplog):
    x, y = make_data(115)
    options = {"epochs": 4, "batch_size": 12, "validation_data": (x[:30], y[:30]), "checkpoint_trigger": 7}
    whole = estimator(3, metrics=["accuracy", "auc"], model_dir=str(tmp_path / "whole"))
    expected = whole.fit(x, y, callbacks=JSONLLogger(tmp_path / "whole.jsonl", steps=True), **options)
    est = estimator(3, metrics=["accuracy", "auc"], model_dir=str(tmp_path / "run"))
    # Ten steps an epoch: killed in the second, two workers continue in its middle, one more joins for the fourth.
    with Room(local, est, after={1: 2, 2: 2}) as room, caplog.at_level(logging.WARNING, "orca"):
        loggers = [room, JSONLLogger(tmp_path / "run.jsonl", steps=True)]
        elastic = {"max_failures": 1, "min_workers": 1}
        history = est.fit(x, y, callbacks=[*loggers, Fault("kill", 2, 19)], **elastic, **options)
    first, second = history.changes
    assert first.startswith("fit continues with 2 of 3 workers from step 14 (rank 2 on ")
    assert second == "fit continues with 3 of 3 workers from step 30 (there is room for them again)"
    assert [record.getMessage() for record in caplog.records] == history.changes
    assert sorted(os.listdir(tmp_path / "run")) == sorted(os.listdir(tmp_path / "whole"))
    for name in ("loss", "accuracy", "auc", "val_loss", "val_auc", "rows", "lr"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5, err_msg=name)
    for name, value in est.get_state_dict().items():
        torch.testing.assert_close(value, whole.get_state_dict()[name], rtol=1e-5, atol=1e-7)
    logs = (tmp_path / "run.jsonl", tmp_path / "whole.jsonl")
    steps, others = ([json.loads(line) for line in log.read_text().splitlines()] for log in logs)
    assert [entry.get("step") for entry in steps] == [entry.get("step") for entry in others]
    losses = [[entry["loss"] for entry in entries if "loss" in entry] for entries in (steps, others)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert est.evaluate(x, y)["accuracy"] == pytest.approx(whole.evaluate(x, y)["accuracy"])


def test_too_few_workers_end_the_run_with_numbers_and_advice(local: Context):
    x, y = make_data(60)
    est = estimator(3)
    with Room(local, est, after={1: 1}) as room, pytest.raises(WorkerError) as caught:
        est.fit(x, y, epochs=2, batch_size=12, max_failures=2, min_workers=2, callbacks=[room, Fault("kill", 1, 8)])
    text = str(caught.value).replace("\n", " ")
    assert "rank 1 on" in text
    assert "There is room for 1 of 3 workers, fewer than min_workers=2. Add hosts and call fit again" in text
    assert "allow fewer with min_workers=1" in text
    assert caught.value.rank == 1
    assert est.epoch == 0


def test_a_run_starts_with_the_workers_there_is_room_for(local: Context):
    x, y = make_data(60)
    est, whole = estimator(3), estimator(3)
    with Room(local, est, after={1: 2, 2: 2}) as room:
        room.most = 2
        history = est.fit(x, y, epochs=4, batch_size=12, max_failures=1, min_workers=1, callbacks=room)
        assert [line[: line.index(" (")] for line in history.changes] == [
            "fit starts with 2 of 3 workers",
            "fit continues with 3 of 3 workers from step 15",
        ]
        est.shutdown()
        room.most = 1
        with pytest.raises(ResourceError, match="min_workers=2 does not fit: the local runtime has room for 1 worker"):
            est.fit(x, y, max_failures=1, min_workers=2)
    whole.fit(x, y, epochs=4, batch_size=12)
    for name, value in est.get_state_dict().items():
        torch.testing.assert_close(value, whole.get_state_dict()[name], rtol=1e-5, atol=1e-7)


def test_room_that_is_none_is_not_taken_for_a_failure(local: Context):
    """The runtime claims more room than it has slots: the run stays as it is, and does not ask again and again."""
    x, y = make_data(60)
    est = estimator(8)
    slots = local.launcher().slots()
    assert slots < 8
    local.launcher = lambda preload=(): _claiming(local.cluster.launcher(preload), slots)
    try:
        history = est.fit(x, y, epochs=4, batch_size=12, max_failures=1, min_workers=2)
    finally:
        del local.launcher
    assert [line[: line.index(" (")] for line in history.changes] == [f"fit starts with {slots} of 8 workers"]


def _claiming(launcher, slots):
    answers = iter([slots, slots])
    launcher.room = lambda: next(answers, 8)
    return launcher


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_workers": 1}, "min_workers=1 is for restarts: also set max_failures="),
        ({"min_workers": 4, "max_failures": 1}, "min_workers=4 is more than workers=3"),
        ({"min_workers": 0, "max_failures": 1}, "min_workers=0: expected an integer of at least 1"),
    ],
)
def test_impossible_numbers_are_refused(local: Context, options, message):
    x, y = make_data(24)
    with pytest.raises(ArgumentError, match=message):
        estimator(3).fit(x, y, **options)
