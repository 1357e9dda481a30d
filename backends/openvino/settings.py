"""The config of an OpenVINO estimator: its checks, and its conversion to OpenVINO's properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_count, check_number, check_path, optional
from orca.core.machine import usable_cpus
from orca.errors import ArgumentError, suggest

HINTS = ("throughput", "latency", "cumulative_throughput")
PRECISIONS = ("f32", "f16", "bf16")
_ALIASES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "hint": "throughput"}
_NAMES = (
    "device",
    "performance_hint",
    "num_streams",
    "num_requests",
    "num_threads",
    "precision",
    "cache_dir",
    "mean",
    "scale",
)


def check(config: Mapping[str, Any]) -> None:
    """Raise if an entry of the config is unknown or has an invalid value."""
    for name in config:
        if name in _NAMES or str(name).isupper():
            continue
        raise ArgumentError(
            f"config has {name!r}, which is not an OpenVINO setting. Settings: {', '.join(_NAMES)}, and OpenVINO's "
            f"own properties in upper case.{suggest(str(name), _NAMES)}"
        )
    for name in ("num_streams", "num_requests", "num_threads"):
        value = config.get(name)
        if value is None or (name == "num_streams" and value == "auto"):
            continue
        check_count(f"config has {name}", value)
    _choice(config, "performance_hint", HINTS)
    _choice(config, "precision", (*PRECISIONS, "auto"))
    for name in ("mean", "scale"):
        value = config.get(name)
        for number in value if isinstance(value, list | tuple) else [] if value is None else [value]:
            check_number(f"config has {name}", number)
    optional(check_path)("config has cache_dir", config.get("cache_dir"))
    device = config.get("device", "CPU")
    if not isinstance(device, str) or not device:
        raise ArgumentError(f'config has device={device!r}: expected a name such as "CPU" or "AUTO".')


def _choice(config: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str | None:
    value = config.get(name)
    if value is None:
        return None
    word = _ALIASES.get(str(value).lower(), str(value).lower())
    if word not in choices:
        raise ArgumentError(
            f"config has {name}={value!r}: expected one of {', '.join(choices)}.{suggest(word, choices)}"
        )
    return word


def device(config: Mapping[str, Any]) -> str:
    """Return OpenVINO's name of the device."""
    return str(config.get("device", "CPU")).upper()


def properties(config: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Return the properties for `compile_model` in a process that may use `threads` threads (0: no limit).

    >>> properties({"num_streams": 2}, 2)["NUM_STREAMS"]
    '2'
    """
    properties: dict[str, Any] = {"PERFORMANCE_HINT": (_choice(config, "performance_hint", HINTS) or HINTS[0]).upper()}
    # By default some processors would compute in bfloat16 or float16: faster, but with other results.
    precision = _choice(config, "precision", (*PRECISIONS, "auto")) or "f32"
    if precision != "auto":
        properties["INFERENCE_PRECISION_HINT"] = precision
    if config.get("num_streams") is not None:
        properties["NUM_STREAMS"] = str(config["num_streams"]).upper()
    limit = int(config.get("num_threads") or threads)
    if limit and device(config) == "CPU":
        properties["INFERENCE_NUM_THREADS"] = limit
        if limit < usable_cpus():
            # OpenVINO would pin its threads to the first cores, as would every other process of this host.
            properties["ENABLE_CPU_PINNING"] = False
    return {**properties, **{name: value for name, value in config.items() if name.isupper()}}
