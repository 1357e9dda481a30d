"""Every argument of `from_mxnet` and `create_config` is checked on the driver, before anything starts."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

from orca import Estimator, create_config
from orca.context import Context
from orca.errors import ArgumentError
from tests.orca.wrong_values import SHARED, Call, Case, arguments_of, extra, mistakes


def make(**changes: Any) -> Estimator:
    creators = {
        "model_creator": lambda config: mx.gluon.nn.Dense(1),
        "loss_creator": lambda config: mx.gluon.loss.L2Loss(),
    }
    return Estimator.from_mxnet(**{**creators, **changes})


CREATOR = extra(lambda: None, lambda a, b: None)
CALLS = [
    Call(
        "from_mxnet",
        Estimator.from_mxnet,
        make,
        {
            **SHARED,
            "model_creator": CREATOR,
            "loss_creator": CREATOR,
            "eval_metrics_creator": extra(lambda: None, right="type"),
            "validation_metrics_creator": extra(lambda: None, right="type"),
            "config": extra(5, "x", [1]),
            "backend": extra([], "mxnet", choices=True),
        },
    ),
    Call(
        "create_config",
        create_config,
        create_config,
        {"log_interval": extra(right="zero"), "seed": extra(right="zero")},
        skip=("optimizer",),
    ),
]


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_a_wrong_value_is_refused_before_anything_starts(cases: list[Case], local: Context):
    assert cases
    assert mistakes(cases) == []


def test_an_option_of_a_backend_is_refused_by_name():
    for options, name in (
        ({"kvstore": "local"}, "kvstore"),
        ({"kvstore": []}, "kvstore"),
        ({"config": {"optimizer": 5}}, "optimizer"),
        ({"config": {"optimizer": "no"}}, "optimizer"),
        ({"config": {"optimizer_params": 5}}, "optimizer_params"),
        ({"kv_store": "dist_sync"}, "kv_store"),
    ):
        with pytest.raises(ArgumentError, match=f"{name}="):
            make(**options)
