"""Kinds of data as cases of the conformance checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pandas as pd
import polars
import pyarrow as pa
import torch
from orca_test_plugins.records import Records

from orca import XShards
from orca.testing import AdapterCase
from orca.testing.cases import NAMES


def table(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def pair(frame: pd.DataFrame) -> tuple[Any, Any]:
    return frame[NAMES].to_numpy(), frame["label"].to_numpy()


class Rows(torch.utils.data.Dataset):
    """A map-style dataset, whose rows are fetched one by one."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.x, self.y = pair(frame)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return torch.from_numpy(self.x[index]), self.y[index]


class Stream(torch.utils.data.IterableDataset):
    """A data set whose rows come one after another."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.x, self.y = pair(frame)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(zip(self.x, self.y, strict=True))


class Plain:
    """The same without a framework."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.rows = Stream(frame)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.rows)


def loader(frame: pd.DataFrame) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Rows(frame), batch_size=16)


def creator(frame: pd.DataFrame) -> Any:
    return lambda config, batch_size: pair(frame)


def shards_of_frames(frame: pd.DataFrame) -> XShards:
    return XShards.partition(frame, num_shards=min(3, len(frame)))


def records(frame: pd.DataFrame) -> Records:
    return Records(frame.to_dict("records"))


FRAME = AdapterCase("pandas DataFrame", lambda frame: frame)
SHARDS = AdapterCase("shards of frames", shards_of_frames, lambda shards: shards.to_pandas())


def ray_dataset(frame: pd.DataFrame) -> Any:
    import ray

    rows = table(frame)
    return ray.data.from_arrow([rows.slice(0, 30), rows.slice(30, 1), rows.slice(31)])


def spark_frame(frame: pd.DataFrame) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate().createDataFrame(table(frame))


LOCAL = [
    FRAME,
    SHARDS,
    AdapterCase("Arrow table", table),
    AdapterCase("Arrow reader", lambda frame: table(frame).to_reader(7), lambda reader: reader.read_all().to_pandas()),
    AdapterCase("polars DataFrame", lambda frame: polars.from_arrow(table(frame))),
    AdapterCase("DuckDB relation", lambda frame: duckdb.from_arrow(table(frame)), lambda relation: relation.df()),
    AdapterCase("torch Dataset", Rows, named=False),
    AdapterCase("torch DataLoader", loader, named=False),
    AdapterCase("torch IterableDataset", Stream, named=False, streams=True),
    AdapterCase("iterable", Plain, named=False, streams=True),
    AdapterCase("data creator", creator, named=False),
    AdapterCase("records", records, lambda predicted: pd.DataFrame(predicted.rows)),
]
ADAPTERS = {
    "local": LOCAL,
    "ray": [AdapterCase("Ray Dataset", ray_dataset), FRAME, SHARDS],
    "spark": [AdapterCase("Spark DataFrame", spark_frame), FRAME, SHARDS],
}
