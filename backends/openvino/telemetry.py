"""Disables the usage reports of OpenVINO's tools: each report forks the process, which can hang it."""

from __future__ import annotations


def off() -> None:
    """Disable usage reports in this process."""
    try:
        from openvino_telemetry.backend.backend_ga4 import GA4Backend
    except ImportError:
        return
    GA4Backend.send = lambda self, message: None
