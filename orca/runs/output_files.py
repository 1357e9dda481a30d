"""Writers of predictions to .csv, .parquet and .npy files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError
from orca.shards.shard_formats import arrow_column

OUTPUTS = (".csv", ".parquet", ".npy")


class Writer(ABC):
    """Writes predictions to an open file, piece by piece."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @abstractmethod
    def write(self, piece: Any) -> None:
        """Add rows: an Arrow table, or a dict of arrays."""

    def close(self) -> None:
        """Write what is still buffered."""


class _Parquet(Writer):
    _file: Any = None

    def write(self, piece: Any) -> None:
        import pyarrow.parquet as pq

        table = _table(piece)
        if self._file is None:
            self._file = pq.ParquetWriter(self.handle, table.schema)
        self._file.write_table(table.cast(self._file.schema))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Csv(Writer):
    """CSV has no lists: each element of an output becomes a column."""

    _file: Any = None

    def write(self, piece: Any) -> None:
        from pyarrow import csv

        table = _flat(_table(piece))
        if self._file is None:
            self._file = csv.CSVWriter(self.handle, table.schema)
        self._file.write_table(table)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Npy(Writer):
    """Buffers rows in a temporary file, as the header of a .npy file contains their number."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self._body = tempfile.TemporaryFile()  # noqa: SIM115
        self._shape: tuple[int, ...] = ()
        self._dtype: Any = None
        self._rows = 0

    def write(self, piece: Any) -> None:
        arrays = {name: value for name, value in piece.items() if name != "path"} if isinstance(piece, dict) else {}
        if not arrays:
            raise ArgumentError("A .npy file has no columns: use .csv or .parquet for the output of a table.")
        if len(arrays) > 1:
            raise ArgumentError(f"A .npy file can hold one output; the model has {', '.join(arrays)}: use .parquet.")
        array = np.ascontiguousarray(next(iter(arrays.values())))
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._rows += len(array)
        self._body.write(array.data)

    def close(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype or np.dtype("f4")),
            "fortran_order": False,
            "shape": (self._rows, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self.handle, header)
        self._body.seek(0)
        shutil.copyfileobj(self._body, self.handle)
        self._body.close()


_WRITERS: dict[str, type[Writer]] = {".csv": _Csv, ".parquet": _Parquet, ".npy": _Npy}


@contextmanager
def output_writer(suffix: str, output: str) -> Iterator[Writer]:
    """Open a writer; the file appears only when it is complete."""
    import fsspec
    import pyarrow as pa

    files, target = fsspec.core.url_to_fs(output)
    draft = f"{target}.part"
    with contextlib.suppress(Exception):
        files.makedirs(files._parent(target), exist_ok=True)
    try:
        with files.open(draft, "wb") as handle:
            writer = _WRITERS[suffix](handle)
            yield writer
            writer.close()
        files.mv(draft, target)
    except BaseException as error:
        with contextlib.suppress(Exception):
            files.rm(draft)
        if isinstance(error, pa.ArrowException):
            raise DataError(f"{output} cannot be written: {' '.join(str(error).split())}") from error
        raise


def _table(piece: Any) -> Any:
    import pyarrow as pa

    if not isinstance(piece, dict):
        return piece
    return pa.table({name: _column(np.asarray(array)) for name, array in piece.items()})


def _column(array: np.ndarray[Any, Any]) -> Any:
    import pyarrow as pa

    if array.dtype.kind == "U":
        return pa.array(array.tolist())
    return arrow_column(array.astype("f4") if array.dtype == np.float16 else array)


def _flat(table: Any) -> Any:
    import pyarrow as pa

    from orca.shards.columns import arrow_to_numpy

    columns: dict[str, Any] = {}
    for field in table.schema:
        column = table.column(field.name)
        if not pa.types.is_nested(field.type):
            columns[field.name] = column
            continue
        if not table.num_rows:
            columns[field.name] = pa.array([], pa.float32())  # the length of the lists is unknown without rows
            continue
        rows = arrow_to_numpy(column, field.name).reshape(table.num_rows, -1)
        for number in range(rows.shape[1]):
            columns[field.name if rows.shape[1] == 1 else f"{field.name}_{number}"] = rows[:, number]
    return pa.table(columns)
