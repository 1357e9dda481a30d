"""Functions written with torch; many rows are computed at once with torch.vmap, where it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.errors import ArgumentError
from orca.shards.tree import tensor_to_numpy
from orca.tensorframes.cells import Array
from orca.tensorframes.programs.library import Function, Library


class TorchLibrary(Library):
    """Tensors of torch, on the CPU, without gradients."""

    def native(self, array: Array) -> Any:
        import torch

        values = np.asarray(array)
        if values.dtype.kind in "OUS":
            raise ArgumentError("torch has no tensors of text. Write the function with numpy or TensorFlow.")
        # torch warns of memory that it may not write to, such as that of Arrow.
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def array(self, value: Any) -> Array:
        return tensor_to_numpy(value, "a result of the function") if hasattr(value, "detach") else np.asarray(value)

    def vectorized(self, function: Function, ranks: Mapping[str, int]) -> Function | None:
        import torch

        names = list(ranks)
        mapped = torch.vmap(lambda *values: function(**dict(zip(names, values, strict=True))), randomness="different")
        return lambda **values: mapped(*(values[name] for name in names))

    @property
    def modules(self) -> tuple[str, ...]:
        return ("torch",)

    def prepare(self, threads: int) -> None:
        import torch

        if threads:
            torch.set_num_threads(threads)
