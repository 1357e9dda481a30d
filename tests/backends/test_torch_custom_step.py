"""Custom training steps of torch models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import WorkerError
from orca.context import Context
from orca.errors import ArgumentError
from tests.backends.torch_estimators import estimator
from tests.conformance.models import make_data


def generator(config):
    return nn.ModuleDict({"make": nn.Linear(2, 4), "judge": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))})


def two_optimizers(model, config):
    return {
        "make": torch.optim.Adam(model["make"].parameters(), 0.02),
        "judge": torch.optim.Adam(model["judge"].parameters(), 0.01),
    }


def gan_step(step):
    real = step.x
    noise = torch.linspace(-1, 1, len(real) * 2).view(-1, 2)
    score = nn.functional.binary_cross_entropy_with_logits
    fake = step.model["make"](noise)
    logits = [step.model["judge"](rows) for rows in (real, fake.detach())]
    judge_loss = score(logits[0], torch.ones(len(real), 1)) + score(logits[1], torch.zeros(len(real), 1))
    step.minimize(judge_loss, "judge")
    make_loss = score(step.model["judge"](fake), torch.ones(len(real), 1))
    step.minimize(make_loss, "make")
    return {"judge_loss": judge_loss, "make_loss": make_loss}


@pytest.mark.parametrize("sync", ["ddp", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_a_custom_step_minimizes_two_losses_without_labels(local: Context, sync, tmp_path):
    x = (np.random.default_rng(0).normal(size=(64, 4)) + 3).astype("f4")
    options = {"model": generator, "optimizer": two_optimizers, "loss": None, "train_step": gan_step}
    est = estimator(sync, **options)
    history = est.fit({"x": x}, epochs=4, batch_size=16)
    assert {"judge_loss", "make_loss", "loss"} <= set(history.columns)
    first = history["loss"][0]
    assert first == pytest.approx(history["judge_loss"][0] + history["make_loss"][0], rel=1e-6)
    est.save(str(tmp_path / "gan"))
    again = estimator(sync, **options).load(str(tmp_path / "gan"))
    np.testing.assert_array_equal(again.fit({"x": x}, batch_size=16)["loss"], est.fit({"x": x}, batch_size=16)["loss"])
    with pytest.raises(ArgumentError, match="train_step= brings its own optimizer steps"):
        estimator("server", **options)
    with pytest.raises(WorkerError, match="optimizer='maker' does not exist. Optimizers: make, judge.*Did you mean"):
        estimator(sync, **{**options, "train_step": lambda step: step.minimize(step.x.sum(), "maker")}).fit({"x": x})


def test_a_custom_step_equals_one_process(local: Context):
    def plain(step):
        loss = nn.functional.cross_entropy(step.model(step.x), step.y)
        step.minimize(loss)
        return loss

    x, y = make_data(61)
    losses = [
        estimator(workers=n, train_step=plain, loss=None).fit(x, y, epochs=2, batch_size=16)["loss"] for n in (1, 3)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_custom_step_works_with_pairs_dataframes_and_validation(local: Context):
    pandas = pytest.importorskip("pandas")

    def plain(step):
        loss = nn.functional.cross_entropy(step.model(step.x), step.y)
        step.minimize(loss)
        return loss

    x, y = make_data(48)
    lr = torch.optim.lr_scheduler
    options = {
        "train_step": plain, "metrics": ["accuracy"],
        "optimizer": lambda model, config: {"only": torch.optim.SGD(model.parameters(), 0.1)},
        "scheduler_creator": lambda optimizers, config: lr.StepLR(optimizers["only"], 1, gamma=0.5),
    }  # fmt: skip
    est = estimator(**options)
    history = est.fit((x, y), epochs=2, batch_size=16, validation_data=(x, y))
    assert "accuracy" not in history.columns
    assert history[-1]["val_accuracy"] > 0.3
    history = est.fit((x, y), epochs=1, batch_size=16)
    assert history["lr"] == pytest.approx([0.025])
    frame = pandas.DataFrame(x, columns=list("abcdef")).assign(label=y)
    framed = estimator(**options).fit(frame, feature_cols=list("abcdef"), label_cols="label", epochs=1, batch_size=16)
    np.testing.assert_allclose(
        framed["loss"], estimator(**options).fit(x, y, epochs=1, batch_size=16)["loss"], rtol=1e-5
    )
