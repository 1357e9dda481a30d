"""Gradient reduction by Horovod."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx

from orca.backends import horovod_group
from orca.backends.base import State
from orca.backends.mxnet.nets import Weight
from orca.backends.mxnet.sync import Sync, same_statistics
from orca.errors import MissingPackageError
from orca.launch.rank import RankContext

_MISSING = (
    'backend="horovod" needs a Horovod that was built with MXNet: run `python tools/build_horovod.py`, or use '
    'backend="parameter_server".'
)


class HorovodSync(Sync):
    """Every rank is a worker and applies the reduced gradients."""

    def __init__(self, context: RankContext) -> None:
        super().__init__()
        self._context = context
        self.world = context.place.world
        self._hvd = horovod()
        horovod_group.join(context, self._hvd)

    def attach(self, weights: Sequence[Weight], optimizer: Any, state: State | None) -> None:
        super().attach(weights, optimizer, state)
        self._gradients = [weight.gradient for weight in weights]
        for number, weight in enumerate(weights):
            # Broadcast a copy: the model's own array may have a memory layout that only MXNet understands.
            value = mx.nd.array(weight.value.asnumpy(), dtype=weight.value.dtype)
            self._hvd.broadcast_(value, root_rank=0, name=f"first.{number}")
            weight.value[:] = value

    def reduce(self) -> None:
        self._hvd.grouped_allreduce_(self._gradients, average=False, name="gradients")

    def total(self, value: float) -> float:
        return float(self._hvd.allreduce(mx.nd.array([value], dtype="float64"), average=False, name="total").asscalar())

    def settle(self, statistics: Sequence[Any]) -> None:
        same_statistics(self._context, statistics)


def check_installed() -> None:
    """Raise, without loading Horovod into this process, if it is missing or was built without MXNet."""
    spec = importlib.util.find_spec("horovod")
    folders = [] if spec is None else spec.submodule_search_locations or []
    if not any(path for folder in folders for path in Path(folder).glob("mxnet/mpi_lib*.so")):
        raise MissingPackageError(_MISSING)


def horovod() -> Any:
    """Import Horovod's MXNet bindings."""
    try:
        import horovod.mxnet as hvd
    except (ImportError, AttributeError, OSError) as error:
        raise MissingPackageError(f"{_MISSING} ({error})") from error
    return hvd
