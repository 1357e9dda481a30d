"""Reducers of tensors over the ranks inside a TensorFlow graph: over Orca's own connections, and Horovod."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from orca.backends.keras.sync import Reducer
from orca.launch.mesh import Mesh


class FlatReducer(Reducer, ABC):
    """Sends tensors as one vector per dtype."""

    @abstractmethod
    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        """Sum a vector over all ranks; with `rounded`, it may be sent in lower precision."""

    def sums(self, tensors: Sequence[Any], site: str, scale: Any = None) -> list[Any]:
        dense = [tf.convert_to_tensor(value) for value in tensors]
        sums: dict[int, tf.Tensor] = {}
        last: list[tf.Tensor] = []
        for dtype in dict.fromkeys(value.dtype for value in dense):
            chosen = [index for index, value in enumerate(dense) if value.dtype == dtype]
            flat = tf.concat([tf.reshape(dense[index], [-1]) for index in chosen], 0)
            if scale is not None:
                flat *= tf.cast(scale, dtype)
            # In a graph without functions nothing else fixes the order of two reductions.
            with tf.control_dependencies(last):
                total = self.add(flat, f"{site} {dtype.name}", scale is not None)
            last = [total]
            parts = tf.split(total, [_size(dense[index]) for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                sums[index] = tf.reshape(part, _shape(dense[index]))
        return [tf.ensure_shape(sums[index], value.shape) for index, value in enumerate(dense)]


def _shape(value: tf.Tensor) -> Any:
    """Return the shape, static if possible so that it is not computed in every step."""
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def _size(value: tf.Tensor) -> Any:
    return value.shape.num_elements() if value.shape.is_fully_defined() else tf.size(value)


class MeshReducer(FlatReducer):
    """Orca's own connections between the ranks.

    TensorFlow's collectives need its gRPC server, which runs any operation for whoever connects to it, listens on all
    addresses of the host and cannot be closed while the process lives.
    """

    def __init__(self, mesh: Mesh, replica: int) -> None:
        self.mesh = mesh
        self.world = mesh.world
        self._replica = replica

    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        return self._call(self.mesh.sum, flat, site, flat.shape)

    def gather(self, flat: tf.Tensor, site: str) -> tf.Tensor:
        """Concatenate vectors of equal length from all ranks, in rank order."""
        size = flat.shape.num_elements()
        return self._call(self.mesh.gather, flat, f"{site} gather", [None if size is None else size * self.world])

    def total(self, value: float) -> float:
        return float(self.mesh.sum(np.array([value], np.float32), f"{self._replica} total")[0])

    def _call(self, reduce: Callable[[Any, str], Any], flat: tf.Tensor, site: str, shape: Any) -> tf.Tensor:
        site = f"{self._replica} {site}"
        # TensorFlow runs such calls in the order in which the program makes them, on every rank.
        result = tf.numpy_function(lambda array: reduce(array, site), [flat], flat.dtype)
        return tf.ensure_shape(result, shape)


class Horovod(FlatReducer):
    """Horovod's allreduce."""

    def __init__(self, world: int, replica: int, compression: str | None = None) -> None:
        import horovod.tensorflow as hvd

        self.world = world
        self._replica = replica
        self._hvd = hvd
        self._compression = hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none

    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        compression = self._compression if rounded else self._hvd.Compression.none
        name = f"orca.{self._replica}.{site}".replace(" ", ".")
        return self._hvd.allreduce(flat, op=self._hvd.Sum, compression=compression, name=name)

    def total(self, value: float) -> float:
        return float(self.add(tf.constant([value], tf.float32), "total")[0])
