"""Records of an RDD as shards, and shards as records again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from orca.shards.packing import unpack
from orca.shards.tree import row_count, take_rows, tree_map
from orca.shards.xshards import XShards

MARK = b"\x01"
"""Ends each value of bytes: an array of bytes would drop zeros at the end."""


def shards_of(rdd: Any, labelled: bool) -> XShards:
    """Return an RDD of records (arrays, or pairs of features and labels) as shards {"x", "y"}."""
    return XShards.from_rdd(rdd).transform_shard(_rows, labelled)


def text_shards(rdd: Any) -> XShards:
    """Return an RDD of text or bytes as shards."""
    return XShards.from_rdd(rdd.map(_text)).transform_shard(_rows, False)


def _text(value: Any) -> Any:
    return np.array(value + MARK if isinstance(value, bytes) else value)


def _rows(shard: Any, labelled: bool) -> dict[str, Any]:
    if not labelled:
        return {"x": shard}
    features, labels = shard
    return {"x": features, "y": labels}


def records_of(shards: XShards, name: str) -> Any:
    """Return an entry of shards as an RDD with one record per row, if they are on Spark; else the shards."""
    chosen = shards.transform_shard(_entry, name)
    if chosen.engine.name != "spark":
        return chosen
    return chosen.parts.flatMap(_unpacked)


def _entry(shard: Any, name: str) -> Any:
    """Return one output, or a list of several."""
    if name in shard:
        return shard[name]
    names = [key for key in shard if str(key).startswith(f"{name}_")]
    return [shard[key] for key in sorted(names, key=lambda key: int(key.rpartition("_")[2]))]


def _unpacked(blob: bytes) -> Iterator[Any]:
    shard = unpack(blob)
    for number in range(row_count(shard)):
        yield tree_map(lambda leaf: np.array(leaf[0]), take_rows(shard, number, number + 1))
