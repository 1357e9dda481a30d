"""Errors of torch estimators, raised before the launch where possible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import WorkerError
from orca.context import Context
from orca.errors import ArgumentError, DataError, NotFittedError, NotPicklableError
from tests.backends.test_torch_custom_step import gan_step
from tests.backends.torch_estimators import estimator
from tests.conformance.models import make_data, model_creator


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        import threading

        self.encoder = nn.Linear(6, 2)
        self.encoder.guard = threading.Lock()

    def forward(self, x):
        return self.encoder(x)


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 1)

    def forward(self, x):
        return self.body(x).sqrt() * float("nan")


def test_bad_input_is_reported_before_the_launch_or_by_the_rank(local: Context):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(20)
    with pytest.raises(NotPicklableError, match=r"model\.encoder\.guard is a lock"):
        estimator(model=Locked(), optimizer=torch.optim.SGD).fit(x, y)
    with pytest.raises(NotPicklableError, match=r"model's variable lock is a lock"):
        lock = Locked().encoder.guard
        estimator(model=lambda config: (lock, model_creator(config))[1]).fit(x, y)
    with pytest.raises(WorkerError, match=r"output has shape \(10, 2\) .*labels \(10, 3\)"):
        estimator().fit(x, np.zeros((20, 3), "i8"), batch_size=20)
    with pytest.raises(WorkerError, match=r"MSELoss needs the same number of values"):
        estimator(loss=nn.MSELoss()).fit(x, y, batch_size=20)
    nan = estimator(model=lambda config: Bad(), loss=nn.MSELoss())
    with pytest.raises(WorkerError, match="loss became nan in step 1 of epoch 1.*terminate_on_nan=False"):
        nan.fit(x, y.astype("f4"), max_failures=2)
    assert np.isnan(nan.fit(x, y.astype("f4"), terminate_on_nan=False)["loss"][0])
    with pytest.raises(DataError, match="no labels"):
        estimator().fit(x)
    with pytest.raises(ArgumentError, match="feature_cols='z' is not in data=. Columns: a, b"):
        estimator().fit(pandas.DataFrame({"a": [1.0], "b": [0]}), feature_cols=["z"], label_cols=["b"])
    with pytest.raises(ArgumentError, match="batch_size=1 is smaller than workers=2"):
        estimator().fit(x, y, batch_size=1)
    with pytest.raises(ArgumentError, match="parameters of another model"):
        estimator(model=nn.Linear(6, 2), optimizer=torch.optim.SGD(nn.Linear(6, 2).parameters(), 0.1))
    for options, words in {
        (("precision", "fp8"),): 'expected "fp32", "bf16" or "fp16"',
        (("sharded", True), ("backend", "horovod")): "sharded=True is not an option of backend='horovod'",
        (("mode", "later"), ("backend", "parameter_server")): 'expected "sync" or "async"',
        (("staleness", 2), ("backend", "parameter_server")): 'staleness= is for mode="async"',
        (("workers", 2), ("num_workers", 2)): "Give one of",
        (("scheduler_step", "week"), ("scheduler_creator", len)): 'expected "epoch" or "step"',
        (("optimizer", torch.optim.LBFGS), ("backend", "ps")): "splits parameters into slices",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            estimator(**dict(options))
    for options, words in {
        (("clip_norm", -1),): "clip_norm=-1: expected a number above 0",
        (("clip_value", (2, 1)),): r"clip_value=\(2, 1\)",
        (("accumulate", 0),): "accumulate=0",
        (("max_steps", 0),): "max_steps=0",
        (("checkpoint_trigger", "often"),): "checkpoint_trigger='often'",
        (("resume", "/nowhere/at/all"),): "has no checkpoint in it",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            estimator().fit(x, y, **dict(options))
    with pytest.raises(NotFittedError, match="no weights yet"):
        estimator().get_state_dict()
    with pytest.raises(NotFittedError, match="give example="):
        estimator().export("onnx", "model")


def test_incompatible_options_are_rejected(local: Context):
    x, y = make_data(20)
    for options, words in (
        ({"sharded": True, "compression": "fp16"}, "does not go together with sharded=True"),
        ({"sharded": True, "train_step": gan_step}, "does not go together with sharded=True"),
        ({"backend": "horovod", "compression": "bf16"}, "Horovod compresses to"),
    ):
        with pytest.raises(ArgumentError, match=words):
            estimator(**options)
    with pytest.raises(ArgumentError, match="accumulate= is not for train_step="):
        estimator(train_step=gan_step).fit(x, y, accumulate=2)
    with pytest.raises(ArgumentError, match="nowhere to write to: give model_dir="):
        estimator().fit(x, y, checkpoint_trigger=3)
