"""MXNet estimator configuration, BigDL-compatible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_count, check_mapping


def create_config(
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    log_interval: int = 10,
    seed: int | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Create the config of `Estimator.from_mxnet`.

    Args:
        optimizer: The name of an MXNet optimizer, or an Optimizer.
        optimizer_params: Arguments of the named optimizer.
        log_interval: Worker 0 prints its loss every ``log_interval`` steps (0: never); set
            ``OrcaContext.log_output = True`` to see it.
        seed: Default of ``seed=`` in `Estimator.from_mxnet`.
        extra_config: Further entries for the creators.

    Returns:
        A dict, passed to every creator.

    Raises:
        ArgumentError: If ``optimizer_params`` is not a dict or ``log_interval`` is not an integer of at least 0.

    >>> create_config(optimizer="adam", optimizer_params={"learning_rate": 0.02})["optimizer"]
    'adam'
    """
    return {
        "optimizer": optimizer,
        "optimizer_params": dict(
            check_mapping("optimizer_params", {} if optimizer_params is None else optimizer_params)
        ),
        "log_interval": check_count("log_interval", log_interval, least=0),
        "seed": None if seed is None else check_count("seed", seed, least=0),
        **check_mapping("extra_config", {} if extra_config is None else extra_config),
    }
