"""Layers of BigDL that are not supported: their names exist, and creating one says what to use instead."""

from __future__ import annotations

from typing import Any

from orca.errors import ArgumentError

_DETECTION = "object detection is not supported"
_SPARSE = "sparse tensors are not supported; convert them with JTensor.to_ndarray()"
REASONS = {
    "PriorBox": _DETECTION,
    "Proposal": _DETECTION,
    "DetectionOutputSSD": _DETECTION,
    "DetectionOutputFrcnn": _DETECTION,
    "RoiPooling": _DETECTION,
    "RoiAlign": _DETECTION,
    "Pooler": _DETECTION,
    "FPN": _DETECTION,
    "SequenceBeamSearch": "beam search is not supported",
    "Transformer": "build a transformer of Attention, FeedForwardNetwork and LayerNormalization",
    "BinaryTreeLSTM": "networks over trees are not supported",
    "SparseLinear": _SPARSE,
    "SparseJoinTable": _SPARSE,
    "LookupTableSparse": _SPARSE,
    "DenseToSparse": _SPARSE,
    "SpatialConvolutionMap": "use SpatialConvolution, with n_group= for separate channels",
    "SpatialContrastiveNormalization": "use SpatialWithinChannelLRN or SpatialBatchNormalization",
    "SpatialDivisiveNormalization": "use SpatialWithinChannelLRN or SpatialBatchNormalization",
    "SpatialSubtractiveNormalization": "use SpatialBatchNormalization",
}
"""Why each of them is not supported, or what to use."""


class UnsupportedLayer:
    """A layer that cannot be created."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise ArgumentError(f"{name} is not supported: {REASONS[name]}.")


UNSUPPORTED: dict[str, type[UnsupportedLayer]] = {name: type(name, (UnsupportedLayer,), {}) for name in REASONS}
