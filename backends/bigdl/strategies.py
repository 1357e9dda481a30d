"""The backends of BigDL layers: the synchronization strategies of torch."""

from __future__ import annotations

from orca.backends.bigdl.framework import BigDLFramework
from orca.backends.torch import strategies

torch_distributed, horovod, parameter_server = strategies(BigDLFramework(), ("orca.backends.bigdl.strategies",))

__all__ = ["horovod", "parameter_server", "torch_distributed"]
