"""MXNet's synchronization strategies: its own KVStore, or Horovod. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mxnet  # noqa: F401 - reports a missing package at once

from orca.backends.mxnet.backend import MXNetBackend, ServerBackend
from orca.backends.mxnet.sync import Sync

if TYPE_CHECKING:
    from orca.backends.mxnet.spec import MXNetSpec
    from orca.launch.rank import RankContext


def _join_horovod(context: RankContext, spec: MXNetSpec, workers: int) -> Sync:
    from orca.backends.mxnet.horovod_sync import HorovodSync

    return HorovodSync(context)


def _join_store(context: RankContext, spec: MXNetSpec, workers: int) -> Sync:
    from orca.backends.mxnet.kvstore import join

    return join(context, workers, spec.servers(workers), spec.kvstore)


parameter_server = ServerBackend("parameter_server", _join_store)
horovod = MXNetBackend("horovod", _join_horovod)
