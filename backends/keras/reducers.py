"""Ways to add tensors up over the ranks inside a TensorFlow graph: its own collectives, Horovod."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from orca.backends.keras.cluster import PATIENCE
from orca.backends.keras.sync import Reducer

_GROUP_KEY = 1


class FlatReducer(Reducer, ABC):
    """Sends tensors as one vector for each kind of number."""

    @abstractmethod
    def add(self, flat: tf.Tensor, place: str, rounded: bool = False) -> tf.Tensor:
        """The sum of a vector over all ranks, whose numbers may be `rounded` on the way."""

    def sums(self, tensors: Sequence[Any], place: str, scale: Any = None) -> list[Any]:
        dense = [tf.convert_to_tensor(value) for value in tensors]
        found: dict[int, tf.Tensor] = {}
        for kind in dict.fromkeys(value.dtype for value in dense):
            chosen = [index for index, value in enumerate(dense) if value.dtype == kind]
            flat = tf.concat([tf.reshape(dense[index], [-1]) for index in chosen], 0)
            if scale is not None:
                flat *= tf.cast(scale, kind)
            added = self.add(flat, f"{place} {kind.name}", scale is not None)
            parts = tf.split(added, [_size(dense[index]) for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                found[index] = tf.reshape(part, _shape(dense[index]))
        return [tf.ensure_shape(found[index], value.shape) for index, value in enumerate(dense)]


def _shape(value: tf.Tensor) -> Any:
    """A shape that is known while the graph is made need not be asked for in every step."""
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def _size(value: tf.Tensor) -> Any:
    return value.shape.num_elements() if value.shape.is_fully_defined() else tf.size(value)


class Collective(FlatReducer):
    """TensorFlow's own collectives, on the cluster that `cluster.join` made."""

    def __init__(self, world: int, replica: int) -> None:
        self.world = world
        self._replica = replica
        self._total = tf.function(lambda value: self.add(value, "total"), autograph=False)

    def _key(self, place: str) -> int:
        return zlib.crc32(f"{self._replica} {place}".encode()) & 0x7FFFFFFF

    def add(self, flat: tf.Tensor, place: str, rounded: bool = False) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self.world,
            group_key=_GROUP_KEY,
            instance_key=self._key(place),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="RING",
            timeout_seconds=PATIENCE,
        )

    def gather(self, flat: tf.Tensor, place: str) -> tf.Tensor:
        """Vectors of one length from all ranks, one after the other."""
        return tf.raw_ops.CollectiveGatherV2(
            input=flat,
            group_size=self.world,
            group_key=_GROUP_KEY,
            instance_key=self._key(f"{place} gather"),
            ordering_token=[],
            communication_hint="RING",
            timeout_seconds=PATIENCE,
        )

    def total(self, value: float) -> float:
        return float(self._total(tf.constant([value], tf.float32))[0])


class Horovod(FlatReducer):
    """Horovod's allreduce."""

    def __init__(self, world: int, replica: int, compression: str | None = None) -> None:
        import horovod.tensorflow as hvd

        self.world = world
        self._replica = replica
        self._hvd = hvd
        self._compression = hvd.Compression.fp16 if compression == "fp16" else hvd.Compression.none

    def add(self, flat: tf.Tensor, place: str, rounded: bool = False) -> tf.Tensor:
        compression = self._compression if rounded else self._hvd.Compression.none
        name = f"orca.{self._replica}.{place}".replace(" ", ".")
        return self._hvd.allreduce(flat, op=self._hvd.Sum, compression=compression, name=name)

    def total(self, value: float) -> float:
        return float(self.add(tf.constant([value], tf.float32), "total")[0])
