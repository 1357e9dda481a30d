"""The configuration of an MXNet estimator, as its users are used to write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_count
from orca.errors import ArgumentError


def create_config(
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    log_interval: int = 10,
    seed: int | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the config of `Estimator.from_mxnet`.

    ``optimizer`` is MXNet's name of one or an Optimizer, ``optimizer_params`` its arguments. Every ``log_interval``
    steps worker 0 prints its loss, which ``OrcaContext.log_output = True`` shows. What
    ``extra_config`` holds is there for the creators.

    >>> create_config(optimizer="adam", optimizer_params={"learning_rate": 0.02})["optimizer"]
    'adam'
    """
    if optimizer_params is not None and not isinstance(optimizer_params, Mapping):
        raise ArgumentError(f"optimizer_params={optimizer_params!r}: expected a dict.")
    return {
        "optimizer": optimizer,
        "optimizer_params": dict(optimizer_params or {}),
        "log_interval": check_count("log_interval", log_interval, least=0),
        "seed": seed,
        **dict(extra_config or {}),
    }
