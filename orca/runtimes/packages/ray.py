"""The packages of the Ray runtime."""

from __future__ import annotations

from orca.core.packages import from_extra

PACKAGES = (from_extra("runtime", "ray", order=20),)
