"""Estimators of the torch tests, and a plain single-process loop to compare them with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from tests.conformance.models import global_order, model_creator, optimizer_creator

SEED = 5
SYNCS = {
    "ddp": {"backend": "torch_distributed"},
    "sharded": {"backend": "torch_distributed", "sharded": True},
    "horovod": {"backend": "horovod"},
    "server": {"backend": "parameter_server"},
}
BACKENDS = [pytest.param(name, marks=pytest.mark.horovod) if name == "horovod" else name for name in SYNCS]


def estimator(sync: str = "ddp", **more) -> Estimator:
    options = {
        "model": model_creator,
        "optimizer": optimizer_creator,
        "loss": nn.CrossEntropyLoss(),
        "config": {"lr": 0.1},
        "workers": 2,
        "seed": SEED,
        **SYNCS[sync],
        **more,
    }
    return Estimator.from_torch(**options)


def alone(x, y, step, *, epochs=2, batch_size=16, model=model_creator, optimizer=optimizer_creator, lr=0.1):
    """Train in a plain loop over the same batches; `step(model, x, y, rows)` computes the gradients."""
    torch.manual_seed(SEED)
    net = model({})
    opt = optimizer(net, {"lr": lr})
    for epoch in range(epochs):
        order = global_order(len(x), batch_size, SEED, epoch, True)
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            opt.zero_grad()
            step(net, torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), rows)
            opt.step()
    return net


def close(est, net, rtol=1e-5, atol=1e-6):
    """Assert that an estimator and a module have the same weights."""
    for key, value in est.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), net.state_dict()[key].numpy(), rtol=rtol, atol=atol, err_msg=key)
