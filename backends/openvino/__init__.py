"""OpenVINO: models that only predict, several requests at once."""

from __future__ import annotations

from orca import telemetry
from orca.backends.openvino.backend import OpenvinoBackend

telemetry.off()
openvino = OpenvinoBackend()

__all__ = ["OpenvinoBackend", "openvino"]
