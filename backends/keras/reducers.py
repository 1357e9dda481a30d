"""Reducers of tensors over the ranks inside a TensorFlow graph: TensorFlow's collectives and Horovod."""

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
    """Sends tensors as one vector per dtype."""

    @abstractmethod
    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        """Sum a vector over all ranks; with `rounded`, it may be sent in lower precision."""

    def sums(self, tensors: Sequence[Any], site: str, scale: Any = None) -> list[Any]:
        dense = [tf.convert_to_tensor(value) for value in tensors]
        sums: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(value.dtype for value in dense):
            chosen = [index for index, value in enumerate(dense) if value.dtype == dtype]
            flat = tf.concat([tf.reshape(dense[index], [-1]) for index in chosen], 0)
            if scale is not None:
                flat *= tf.cast(scale, dtype)
            total = self.add(flat, f"{site} {dtype.name}", scale is not None)
            parts = tf.split(total, [_size(dense[index]) for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                sums[index] = tf.reshape(part, _shape(dense[index]))
        return [tf.ensure_shape(sums[index], value.shape) for index, value in enumerate(dense)]


def _shape(value: tf.Tensor) -> Any:
    """Return the shape, static if possible so that it is not computed in every step."""
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def _size(value: tf.Tensor) -> Any:
    return value.shape.num_elements() if value.shape.is_fully_defined() else tf.size(value)


class Collective(FlatReducer):
    """TensorFlow's collectives, on the cluster that `cluster.join` created."""

    def __init__(self, world: int, replica: int) -> None:
        self.world = world
        self._replica = replica
        self._total = tf.function(lambda value: self.add(value, "total"), autograph=False)

    def _key(self, site: str) -> int:
        return zlib.crc32(f"{self._replica} {site}".encode()) & 0x7FFFFFFF

    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self.world,
            group_key=_GROUP_KEY,
            instance_key=self._key(site),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="RING",
            timeout_seconds=PATIENCE,
        )

    def gather(self, flat: tf.Tensor, site: str) -> tf.Tensor:
        """Concatenate vectors of equal length from all ranks, in rank order."""
        return tf.raw_ops.CollectiveGatherV2(
            input=flat,
            group_size=self.world,
            group_key=_GROUP_KEY,
            instance_key=self._key(f"{site} gather"),
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

    def add(self, flat: tf.Tensor, site: str, rounded: bool = False) -> tf.Tensor:
        compression = self._compression if rounded else self._hvd.Compression.none
        name = f"orca.{self._replica}.{site}".replace(" ", ".")
        return self._hvd.allreduce(flat, op=self._hvd.Sum, compression=compression, name=name)

    def total(self, value: float) -> float:
        return float(self.add(tf.constant([value], tf.float32), "total")[0])
