"""The local runtime, which needs only Orca itself."""

from __future__ import annotations

import os

from orca.core.packages import Package


def cores(quick: bool) -> tuple[str, str]:
    """Return the number of cores as a note."""
    return f"{os.cpu_count()} cores", ""


_FIX = "pip install --force-reinstall orca-estimator"

PACKAGES = (Package("runtime", "local", "orca", _FIX, ("orca-estimator",), order=10, inspect=cores),)
