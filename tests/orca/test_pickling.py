"""Errors for what cannot be pickled: they name the variable, on every runtime."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from orca import XShards
from orca.context import Context
from orca.core.pickling import check_picklable
from orca.errors import NotPicklableError

GUARD = threading.Lock()


def creator(config: dict[str, Any], helper: Any = None) -> Any:
    return config, helper


class Model:
    def __init__(self) -> None:
        self.layers = [1, {"guard": threading.Lock()}]

    def create(self, config: dict[str, Any]) -> Any:
        return self.layers


def test_the_captured_object_is_named():
    guard = threading.Lock()
    nested = lambda config: [GUARD for _ in config]  # noqa: E731
    for value, words in (
        (lambda config: (guard, config), "model_creator's variable guard is a lock"),
        (lambda config: (GUARD, config), "model_creator's global variable GUARD is a lock"),
        (nested, "model_creator's global variable GUARD is a lock"),
        (lambda config, lock=guard: lock, "model_creator's default of lock is a lock"),
        (lambda config: nested(config), "model_creator's variable nested's global variable GUARD is a lock"),
        (functools.partial(creator, helper=guard), "model_creator's argument helper is a lock"),
        (Model().create, r"model_creator's object.layers\[1\]\['guard'\] is a lock"),
    ):
        with pytest.raises(NotPicklableError, match=f"{words}.*inside of the function model_creator="):
            check_picklable(model_creator=value)
    with pytest.raises(NotPicklableError, match=r"model.layers.*is a lock.*give model= as a function"):
        check_picklable(model=Model())


def test_a_function_on_shards_that_cannot_be_pickled_is_refused_on_every_runtime(context: Context):
    guard = threading.Lock()
    shards = XShards.partition(np.arange(8.0), num_shards=2)
    with pytest.raises(NotPicklableError, match=r"fn's variable guard is a lock.*inside of the function fn="):
        shards.transform_shard(lambda shard: (guard, shard)[1]).collect()
    with pytest.raises(NotPicklableError, match=r"fn's global variable GUARD is a lock"):
        shards.transform_shard(np.sqrt).transform_shard(lambda shard: (GUARD, shard)[1]).collect()
    with pytest.raises(NotPicklableError, match=r"fn is a lock"):
        shards.transform_shard(lambda shard, lock: shard, guard).collect()
    if context.runtime != "local":  # there the first shard is read by this process
        with pytest.raises(NotPicklableError, match=r"fn's variable guard is a lock"):
            shards.inspect(lambda shard: (guard, len(shard))[1])
