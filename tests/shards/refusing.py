"""Data and estimators for tests of what is refused, and the check that nothing was started for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.context import Context
from orca.errors import DataError

ROWS = 20
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
Y = np.arange(ROWS) % 3
NAMES = ["a", "b", "c", "d"]


def estimator(model=None, loss=None, **more) -> Estimator:
    options = {"optimizer": torch.optim.SGD, "config": {"lr": 0.01}, "workers": 1, "seed": 1, **more}
    return Estimator.from_torch(model=model or nn.Linear(4, 3), loss=loss or nn.CrossEntropyLoss(), **options)


def regression(model=None, **more) -> Estimator:
    return estimator(model or nn.Linear(4, 1), nn.MSELoss(), **more)


def changed(array, row, value, dtype=None):
    array = np.array(array, dtype or array.dtype)
    array[row] = value
    return array


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame({**dict(zip(NAMES, X.T, strict=True)), "label": Y, **columns})


def runs(context: Context) -> bool:
    """Whether some rank runs."""
    return any(gang.running for gang in context._gangs._gangs.values())


def refused(context: Context, call, *words: str, kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is kind, text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    assert len(text) < 600, text
    assert not runs(context), "a rank was started"
    return text
