"""The packages of the PyTorch backends."""

from __future__ import annotations

from orca.backends.packages.horovod import binding
from orca.core.packages import from_extra

PACKAGES = (from_extra("framework", "torch", order=10), binding("torch", order=10))
