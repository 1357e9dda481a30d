"""The packages of the OpenVINO backend."""

from __future__ import annotations

from orca.core.packages import from_extra

PACKAGES = (from_extra("framework", "openvino", order=40),)
