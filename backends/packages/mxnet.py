"""The packages of the MXNet backends."""

from __future__ import annotations

from orca.backends.packages.horovod import binding
from orca.core.packages import from_extra

# MXNet imports only with Orca's compatibility fixes, which this module brings.
_COMPATIBILITY = "orca.backends.mxnet.strategies"

PACKAGES = (
    from_extra("framework", "mxnet", first=_COMPATIBILITY, order=30),
    binding("mxnet", order=30, first=_COMPATIBILITY),
)
