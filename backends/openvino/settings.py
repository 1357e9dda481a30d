"""The config of an OpenVINO estimator: checked here, turned into OpenVINO's own properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_count
from orca.core.machine import usable_cpus
from orca.errors import ArgumentError, suggest

HINTS = ("throughput", "latency", "cumulative_throughput")
PRECISIONS = ("f32", "f16", "bf16")
_SAME = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "hint": "throughput"}
_KNOWN = (
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
    """Raise if an entry of the config is not known or has no such value."""
    for name in config:
        if name in _KNOWN or name.isupper():
            continue
        raise ArgumentError(
            f"config has {name!r}, which OpenVINO estimators do not know. Known: {', '.join(_KNOWN)}, and OpenVINO's "
            f"own properties in capitals.{suggest(name, _KNOWN)}"
        )
    for name in ("num_streams", "num_requests", "num_threads"):
        value = config.get(name)
        if value is None or (name == "num_streams" and value == "auto"):
            continue
        check_count(f"config has {name}", value)
    _choice(config, "performance_hint", HINTS)
    _choice(config, "precision", (*PRECISIONS, "auto"))
    device = config.get("device", "CPU")
    if not isinstance(device, str) or not device:
        raise ArgumentError(f'config has device={device!r}: expected a name such as "CPU" or "AUTO".')


def _choice(config: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str | None:
    value = config.get(name)
    if value is None:
        return None
    word = _SAME.get(str(value).lower(), str(value).lower())
    if word not in known:
        raise ArgumentError(f"config has {name}={value!r}: expected one of {', '.join(known)}.{suggest(word, known)}")
    return word


def device(config: Mapping[str, Any]) -> str:
    """The device's name as OpenVINO knows it."""
    return str(config.get("device", "CPU")).upper()


def properties(config: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What `compile_model` is told, for a process that may use so many threads (0: as many as it likes).

    >>> properties({"num_streams": 2}, 2)["NUM_STREAMS"]
    '2'
    """
    told: dict[str, Any] = {"PERFORMANCE_HINT": (_choice(config, "performance_hint", HINTS) or HINTS[0]).upper()}
    # Some processors would compute in halves by default: faster, and other numbers than the model's own.
    precision = _choice(config, "precision", (*PRECISIONS, "auto")) or "f32"
    if precision != "auto":
        told["INFERENCE_PRECISION_HINT"] = precision
    if config.get("num_streams") is not None:
        told["NUM_STREAMS"] = str(config["num_streams"]).upper()
    wanted = int(config.get("num_threads") or threads)
    if wanted and device(config) == "CPU":
        told["INFERENCE_NUM_THREADS"] = wanted
        if wanted < usable_cpus():
            # OpenVINO would bind its threads to the first cores, and so would every other process of this host.
            told["ENABLE_CPU_PINNING"] = False
    return {**told, **{name: value for name, value in config.items() if name.isupper()}}
