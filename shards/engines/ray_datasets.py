"""Ray Datasets in and out of shards, by reference."""

from __future__ import annotations

from typing import Any

from orca.shards.engines.ray import RayShard


def dataset_to_parts(dataset: Any) -> list[RayShard]:
    """The blocks of a Dataset as Arrow tables, which stay where they are."""
    return [RayShard(ref) for ref in dataset.to_arrow_refs()]


def parts_to_dataset(parts: list[RayShard]) -> Any:
    """Shards that are Arrow tables as the blocks of a Dataset."""
    import ray.data

    return ray.data.from_arrow_refs([part.ref for part in parts])
