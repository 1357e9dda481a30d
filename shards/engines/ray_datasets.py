"""Conversion between Ray Datasets and shards, by reference."""

from __future__ import annotations

from typing import Any

from orca.shards.engines.ray import RayShard, row_counts


def dataset_to_parts(dataset: Any) -> list[RayShard]:
    """Return the blocks of a Dataset as Arrow tables, without moving them."""
    return [RayShard(ref) for ref in dataset.to_arrow_refs()]


def parts_to_dataset(parts: list[RayShard]) -> Any:
    """Return a Dataset whose blocks are shards that are Arrow tables."""
    import ray.data

    row_counts(parts)  # raises what a transformation raised, which Ray Data would take for a block
    return ray.data.from_arrow_refs([part.ref for part in parts])
