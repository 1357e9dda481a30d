"""OpenVINO's Core of this process, and its errors in one line."""

from __future__ import annotations

import os
from typing import Any

import openvino

_cores: dict[int, Any] = {}
_ASIDES = ("Check '", "Exception from", "FrontEnd API failed", "Model wasn't fully converted", "Summary:", "While ")


def first_line(error: Exception) -> str:
    """Return the first line of an OpenVINO error that is not about OpenVINO's own source code."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    relevant = [line for line in lines if not line.startswith(_ASIDES)]
    return (relevant or lines or [type(error).__name__])[0].rstrip(".:")


def core() -> Any:
    """Return OpenVINO's Core of this process."""
    # A forked child must not destroy its parent's Core: it would wait forever for threads that it does not have.
    pid = os.getpid()
    if pid not in _cores:
        _cores[pid] = openvino.Core()
    return _cores[pid]
