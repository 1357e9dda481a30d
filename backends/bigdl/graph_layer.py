"""A TensorFlow graph with fixed values as a layer: it computes features for the layers behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from orca.backends.bigdl.debugging import uses_own_stream
from orca.backends.bigdl.layer import Layer
from orca.errors import DataError


class GraphLayer(Layer):
    """Runs a graph on tensors. Its values do not change, and no gradient passes it.

    Args:
        part: The graph, which travels with the layer and is opened once in each process.
        dtypes: The numpy dtypes of its inputs.
    """

    def __init__(self, part: Any, dtypes: list[Any]) -> None:
        super().__init__()
        self.part, self.dtypes = part, dtypes

    def compute(self, x: Any) -> Any:
        from orca.backends.graph.pipelines.frozen import opened

        tensors = list(x) if isinstance(x, list | tuple) else [x]
        if len(tensors) != len(self.dtypes):
            raise DataError(f"{self!r} has {len(self.dtypes)} inputs; received {len(tensors)}.")
        if torch.is_grad_enabled() and not uses_own_stream() and any(tensor.requires_grad for tensor in tensors):
            raise DataError(
                f"{self!r} passes no gradient to the layers before it, which would never be trained. Put it first, or "
                "freeze them."
            )
        arrays = tuple(
            tensor.detach().cpu().numpy().astype(dtype, copy=False)
            for tensor, dtype in zip(tensors, self.dtypes, strict=True)
        )
        outputs = [torch.from_numpy(np.array(output)) for output in opened(self.part).run(arrays)]
        return outputs[0] if len(outputs) == 1 else outputs
