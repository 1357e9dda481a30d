"""OpenVINO: asynchronous inference. `backend` imports OpenVINO, `telemetry` does not."""

from __future__ import annotations

from orca.backends.openvino import telemetry

telemetry.off()
