"""Every argument of `from_bigdl` is checked on the driver, before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca import Estimator
from orca.bigdl.nn.criterion import MSECriterion
from orca.bigdl.nn.layer import Linear, Reshape, Sequential
from orca.bigdl.nnframes import FeatureLabelPreprocessing, SeqToTensor
from orca.bigdl.optim.optimizer import SGD, Adam
from orca.context import Context
from orca.errors import ArgumentError, UnknownArgumentError
from tests.orca.wrong_values import SHARED, Call, Case, arguments_of, extra, mistakes


def make(**changes: Any) -> Estimator:
    model = Sequential().set_name("all").add(Linear(3, 2).set_name("first"))
    return Estimator.from_bigdl(**{"model": model, "loss": MSECriterion(), "optimizer": SGD(), **changes})


FORM = extra([None], [0], [[2], 3], [1.5], {"a"}, SeqToTensor, right="None, empty list")
CALL = Call(
    "from_bigdl",
    Estimator.from_bigdl,
    make,
    {
        **SHARED,
        "model": extra(Linear, MSECriterion(), [Linear(3, 2)]),
        "loss": extra(MSECriterion, "mse", Linear(3, 2), right="None"),
        "optimizer": extra(SGD, "adam", {"first": "sgd"}, {"second": Adam()}, {1: Adam()}, [SGD()], right="None"),
        "feature_preprocessing": FORM,
        "label_preprocessing": extra(*FORM.wrong, FeatureLabelPreprocessing([2], [1]), right="None, empty list"),
        "backend": extra([], "spark", "server", choices=True),
    },
)


@pytest.mark.parametrize("cases", arguments_of([CALL]))
def test_a_wrong_value_is_refused_before_anything_starts(cases: list[Case], local: Context):
    assert cases
    assert mistakes(cases) == []


def test_options_and_features_that_do_not_exist_are_named(local: Context):
    for value in ("fp8", [], 5):
        with pytest.raises(ArgumentError, match="compression="):
            make(compression=value)
    with pytest.raises(UnknownArgumentError, match=r"optimiser=.*Did you mean 'optimizer'"):
        Estimator.from_bigdl(model=Linear(3, 2), optimiser=SGD())
    x, y = np.zeros((8, 3), "f4"), np.zeros((8, 2), "f4")
    with pytest.raises(ArgumentError, match="fit needs loss= in from_bigdl"):
        make(loss=None).fit(x, y)
    with pytest.raises(ArgumentError, match="one value per row"):
        make().fit(x, y, sample_weight=np.ones(8))
    with pytest.raises(ArgumentError, match="no weights to train"):
        make(model=Sequential().add(Reshape([3]))).fit(x, x)
