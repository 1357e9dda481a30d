"""TensorFlow graphs with placeholders and sessions: one replica, gradients reduced as for Keras."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from orca.backends.graph.backend import GraphBackend

if TYPE_CHECKING:
    from orca.backends.graph.spec import GraphSpec
    from orca.backends.keras.reducers import FlatReducer
    from orca.launch.rank import RankContext


def _multiworker(context: RankContext, spec: GraphSpec, number: int) -> FlatReducer:
    from orca.backends.keras.reducers import MeshReducer
    from orca.launch import mesh

    return MeshReducer(mesh.join(context), number)


def _horovod(context: RankContext, spec: GraphSpec, number: int) -> FlatReducer:
    import horovod.tensorflow as hvd

    from orca.backends import horovod_group
    from orca.backends.keras.reducers import Horovod

    horovod_group.join(context, hvd)
    return Horovod(context.place.world, number, spec.sync_options.get("compression"))


multiworker = GraphBackend("multiworker", _multiworker)
horovod = GraphBackend("horovod", _horovod, ("compression",))

__all__ = ["GraphBackend", "horovod", "multiworker"]
