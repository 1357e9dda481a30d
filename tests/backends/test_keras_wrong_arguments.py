"""Every argument of `from_keras` is checked on the driver, before anything starts."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from orca import Estimator
from orca.context import Context
from orca.errors import ArgumentError
from tests.orca.wrong_values import SHARED, Call, Case, arguments_of, extra, mistakes


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def make(**changes: Any) -> Estimator:
    given = {} if {"model", "keras_model"} & set(changes) else {"model_creator": lambda config: compiled()}
    return Estimator.from_keras(**{**given, **changes})


CREATOR = extra(lambda: None, lambda a, b: None)
CALL = Call(
    "from_keras",
    Estimator.from_keras,
    make,
    {
        **SHARED,
        "model": extra(keras.layers.Dense(1)),
        "keras_model": extra(keras.layers.Dense(1), right="None"),
        "model_creator": CREATOR,
        "compile_args_creator": CREATOR,
        "config": extra(5, "x", [1]),
        "backend": extra([], "keras", "multi", choices=True),
        "seed": extra(2**32, right="zero"),
    },
)


@pytest.mark.parametrize("cases", arguments_of([CALL]))
def test_a_wrong_value_is_refused_before_anything_starts(cases: list[Case], local: Context):
    assert cases
    assert mistakes(cases) == []


def test_an_option_of_a_backend_is_refused_by_name():
    for value in ("bf16", [], 5):
        with pytest.raises(ArgumentError, match="compression="):
            make(backend="horovod", compression=value)
    with pytest.raises(ArgumentError, match=r"kears_model=.*Did you mean 'keras_model'"):
        Estimator.from_keras(kears_model=compiled())
