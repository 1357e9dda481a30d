"""Keras on TensorFlow or torch: one replica, several synchronization strategies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from orca.backends.keras.backend import KerasBackend, MirroredBackend, ServerBackend
from orca.backends.keras.engine import LIBRARY

if TYPE_CHECKING:
    from orca.backends.keras.spec import KerasSpec
    from orca.backends.keras.sync import Reducer
    from orca.launch.rank import RankContext


def _multiworker(context: RankContext, spec: KerasSpec, number: int) -> Reducer:
    if LIBRARY == "torch":
        from orca.backends.keras.torch_group import Group

        return Group(context)
    from orca.backends.keras.reducers import MeshReducer
    from orca.launch import mesh

    return MeshReducer(mesh.join(context), number)


def _horovod(context: RankContext, spec: KerasSpec, number: int) -> Reducer:
    import horovod.tensorflow as hvd

    from orca.backends import horovod_group
    from orca.backends.keras.reducers import Horovod

    horovod_group.join(context, hvd)
    return Horovod(context.place.world, number, spec.sync_options.get("compression"))


multiworker = KerasBackend("multiworker", _multiworker)
horovod = KerasBackend("horovod", _horovod, ("compression",))
parameter_server = ServerBackend("parameter_server", _multiworker)
mirrored_strategy = MirroredBackend("mirrored", _multiworker)

__all__ = ["KerasBackend", "horovod", "mirrored_strategy", "multiworker", "parameter_server"]
