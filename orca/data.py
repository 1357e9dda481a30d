"""Readers of csv, json, parquet, image and TFRecord files into XShards, and writers of parquet and TFRecord."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orca.shards.readers.csv_files import read_csv
    from orca.shards.readers.image_files import read_image_folder, read_images
    from orca.shards.readers.json_files import read_json
    from orca.shards.readers.parquet_files import read_parquet, write_parquet
    from orca.shards.readers.tfrecord_files import read_tfrecord, write_tfrecord

_MODULES = {
    "read_csv": "csv_files",
    "read_image_folder": "image_files",
    "read_images": "image_files",
    "read_json": "json_files",
    "read_parquet": "parquet_files",
    "read_tfrecord": "tfrecord_files",
    "write_parquet": "parquet_files",
    "write_tfrecord": "tfrecord_files",
}

__all__ = [
    "read_csv",
    "read_image_folder",
    "read_images",
    "read_json",
    "read_parquet",
    "read_tfrecord",
    "write_parquet",
    "write_tfrecord",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: reading csv files needs no image library.
    if name in _MODULES:
        return getattr(import_module(f"orca.shards.readers.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'orca.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
