"""Sharded torch states in parts: torch.distributed.checkpoint plans who writes what, each rank writes one file.

Its own storage keeps the index as a pickle, which can run code when it is loaded. This one returns the index instead.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from orca.backends.base import State
from orca.backends.parts import InParts, Parts, part_name, write_part

_BFLOAT16 = "torch.bfloat16"


class Slices:
    """Collects the sharded tensors of a state, and replaces them in it."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def taken(self, name: str, value: Any) -> Any:
        """Return the leaf to store in place of a value."""
        if not hasattr(value, "full_tensor"):
            return value
        self.tensors[name] = value
        return {_BFLOAT16: InParts(name)} if value.dtype == torch.bfloat16 else InParts(name)


def save_parts(tensors: dict[str, torch.Tensor], path: str, token: str, rank: int) -> Parts | None:
    """Write the slices of this rank; called on all ranks together. Return the index on rank 0."""
    writer = _PartWriter(path, token, rank)
    dcp.save(tensors, storage_writer=writer)
    return writer.parts


class _PartWriter(StorageWriter):  # type: ignore[misc]
    """Writes the slices that the plan assigns to this rank."""

    def __init__(self, path: str, token: str, rank: int) -> None:
        self._path, self._name = path, part_name(token, rank)
        self.parts: Parts | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.parts = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        arrays = {str(number): _array(planner.resolve_data(item)) for number, item in enumerate(plan.items)}
        checksum = write_part(self._path, self._name, arrays) if arrays else ""
        results = []
        for item, (key, array) in zip(plan.items, arrays.items(), strict=True):
            results.append(WriteResult(item.index, array.nbytes, (self._name, checksum, key, str(array.dtype))))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files: dict[str, str] = {}
        arrays: dict[str, dict[str, Any]] = {}
        for result in (result for of_rank in results for result in of_rank):
            file, checksum, key, dtype = result.storage_data
            files[file] = checksum
            name = result.index.fqn
            shape = list(metadata.state_dict_metadata[name].size)
            array = arrays.setdefault(name, {"dtype": dtype, "shape": shape, "slices": []})
            if result.size_in_bytes:
                array["slices"].append([file, key, list(result.index.offset or [0] * len(shape))])
        self.parts = Parts(files, arrays)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16.
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def split_state(slices: Slices, model: dict[str, Any], optimizer: dict[str, Any] | None) -> tuple[State, State | None]:
    """Return the states of model and optimizer with their sharded tensors taken out."""
    weights = {name: slices.taken(f"model.{name}", value) for name, value in model.items()}
    if optimizer is None:
        return weights, None
    rest = {
        key: {name: slices.taken(f"optimizer.{key}.{name}", value) for name, value in entry.items()}
        for key, entry in optimizer["state"].items()
    }
    return weights, {**optimizer, "state": rest}
