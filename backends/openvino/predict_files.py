"""Predictions from files to a file, piece by piece: what the command `orca predict` does."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import ArgumentError, DataError
from orca.shards.forms import arrow_column
from orca.shards.readers.image_files import CHANNELS, ENDINGS, Picture, read_group
from orca.shards.readers.paths import File, listing, told_of
from orca.shards.readers.tables import common_schema, opened, tables

INPUTS = (".csv", ".parquet", ".npy", *ENDINGS)
OUTPUTS = (".csv", ".parquet", ".npy")
_PIECE = 16
"""Batches that are read, computed and written together, at least;"""
_PIECE_ROWS, _PIECE_BYTES = 4096, 32 << 20
"""more of them if they have fewer rows, up to so much input: each piece becomes a row group of a .parquet file."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    batch_size: int | None = None
    device: str = "CPU"
    layout: str | None = None
    columns: tuple[str, ...] | None = None
    output_cols: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    hint: str | None = None
    progress: bool | None = None


@dataclass(frozen=True)
class Told:
    """How much was done."""

    rows: int
    seconds: float


def predict_files(model: str, inputs: str, output: str, options: Options) -> Told:
    """Run a model over files and write its outputs, beside the columns of the input if it has any."""
    from tqdm.auto import tqdm

    from orca.estimator import Estimator

    kind = _ending(output, OUTPUTS)
    if kind is None:
        raise ArgumentError(f"output {output!r}: expected a name that ends in {', '.join(OUTPUTS)}.")
    files = listing(inputs, endings=INPUTS)
    form = _form(files)
    config = {"device": options.device, "mean": options.mean, "scale": options.scale, "performance_hint": options.hint}
    given = {key: value for key, value in config.items() if value is not None}
    layout = options.layout if options.layout or form != "images" else "NHWC"
    try:
        est = Estimator.from_openvino(model_path=model, config=given, layout=layout)
    except ArgumentError:
        if layout != options.layout:
            # What is wrong is the model, not a layout that nobody gave.
            _row_port(Estimator.from_openvino(model_path=model, config=given).spec)
        raise
    rows_at_once = _piece_rows(est.spec, est.backend.framework.batch_size(est.spec, options.batch_size))
    pixels = options.size or _image_size(est.spec) if form == "images" else None
    source = _Source(files, form, rows_at_once, pixels, *(common_schema(files) if form == "table" else ()))
    show = sys.stderr.isatty() if options.progress is None else options.progress
    rows, began = 0, time.perf_counter()
    with (
        _writer(kind, output) as writer,
        tqdm(total=source.rows(), unit="row", unit_scale=True, disable=not show) as bar,
    ):
        for kept, features in source.pieces(_channels(est.spec)):
            names = None if options.output_cols is None else list(options.output_cols)
            if form == "table":
                cols = None if options.columns is None else list(options.columns)
                table = est.predict(features, batch_size=options.batch_size, feature_cols=cols, output_cols=names)
                count = table.num_rows
            else:
                from orca.backends.worker.inference import name_outputs

                outputs = name_outputs(est.predict(features, batch_size=options.batch_size), names)
                count = len(next(iter(outputs.values())))
                table = kept | outputs
            writer.write(table)
            rows += count
            bar.update(count)
    return Told(rows, time.perf_counter() - began)


def _ending(path: str, known: Sequence[str]) -> str | None:
    return next((ending for ending in known if path.lower().endswith(ending)), None)


def _form(files: list[File]) -> str:
    found = {_ending(file.url, INPUTS) for file in files}
    forms = {"table" if e in (".csv", ".parquet") else "array" if e == ".npy" else "images" for e in found}
    if None in found or len(forms) > 1 or (found & {".csv", ".parquet"} and len(found) > 1):
        raise DataError(
            f"input {files[0].label!r} and others: expected files of one kind, ending in .csv, .parquet, .npy or like "
            "those of images."
        )
    return forms.pop()


def _piece_rows(spec: Any, batch: int) -> int:
    row = sum(np.prod([side or 1 for side in port.shape[1:]]) * np.dtype(port.dtype).itemsize for port in spec.inputs)
    batches = min(_PIECE_ROWS, _PIECE_BYTES // max(1, int(row))) // batch
    return batch * max(_PIECE, batches)


def _row_port(spec: Any) -> Any:
    if len(spec.inputs) != 1 or len(spec.inputs[0].shape) != 4:
        raise DataError("Images go to a model with one input of four axes; this one has another.")
    return spec.inputs[0]


def _image_size(spec: Any) -> tuple[int, int] | None:
    """Height and width of the pictures that the model takes, if it fixes them."""
    port = _row_port(spec)
    high, wide = (port.shape[2], port.shape[3]) if port.order is not None else (port.shape[1], port.shape[2])
    return None if high is None or wide is None else (high, wide)


def _channels(spec: Any) -> int:
    port = spec.inputs[0]
    if len(port.shape) != 4:
        return 3
    return (port.shape[1] if port.order is not None else port.shape[3]) or 3


@dataclass(frozen=True)
class _Source:
    files: list[File]
    form: str
    size: int
    """Rows of a piece."""
    pixels: tuple[int, int] | None = None
    schema: Any = None
    """The columns of tables."""
    table_rows: int = 0

    def rows(self) -> int:
        """How many rows there are."""
        if self.form == "images":
            return len(self.files)
        if self.form == "array":
            return sum(len(self._array(file)) for file in self.files)
        return self.table_rows

    def pieces(self, channels: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """What is kept beside the outputs, and what the model gets."""
        if self.form == "images":
            mode = next((mode for mode, count in CHANNELS.items() if count == channels), "RGB")
            width = max(len(file.url) for file in self.files)
            for low in range(0, len(self.files), self.size):
                group = [Picture(file, -1) for file in self.files[low : low + self.size]]
                read = read_group(group, self.pixels, mode, width)
                yield {"path": read["path"]}, read["image"]
            return
        if not self.rows():
            # The output has the right columns all the same.
            yield {}, self._array(self.files[0]) if self.form == "array" else self.schema.empty_table()
            return
        for file in self.files:
            if self.form == "array":
                array = self._array(file)
                for low in range(0, len(array), self.size):
                    yield {}, np.asarray(array[low : low + self.size])
            else:
                for table in tables(file, self.schema, self.size):
                    yield {}, table

    @staticmethod
    def _array(file: File) -> np.ndarray[Any, Any]:
        with told_of(file):
            if file.local:
                array = np.load(file.url, mmap_mode="r", allow_pickle=False)
            else:
                with opened(file) as handle:
                    array = np.load(handle, allow_pickle=False)
        if array.ndim == 0:
            raise DataError(f"{file.label} holds a single number; expected an array of rows.")
        return np.asarray(array)


class _Writer(ABC):
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @abstractmethod
    def write(self, piece: Any) -> None:
        """Add rows: an Arrow table, or a dict of arrays."""

    def close(self) -> None:
        """Write what is left."""


class _Parquet(_Writer):
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


class _Csv(_Writer):
    """A file cannot hold lists: each number of an output gets a column of its own."""

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


class _Npy(_Writer):
    """Rows go to a file beside, as the number of them stands at the beginning of the real one."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self._body = tempfile.TemporaryFile()  # noqa: SIM115
        self._shape: tuple[int, ...] = ()
        self._dtype: Any = None
        self._rows = 0

    def write(self, piece: Any) -> None:
        arrays = {name: value for name, value in piece.items() if name != "path"} if isinstance(piece, dict) else {}
        if not arrays:
            raise ArgumentError("A .npy file holds no columns: use .csv or .parquet for the output of a table.")
        if len(arrays) > 1:
            raise ArgumentError(f"A .npy file holds one output; the model has {', '.join(arrays)}: use .parquet.")
        array = np.ascontiguousarray(next(iter(arrays.values())))
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._rows += len(array)
        self._body.write(array.data)

    def close(self) -> None:
        head = {
            "descr": np.lib.format.dtype_to_descr(self._dtype or np.dtype("f4")),
            "fortran_order": False,
            "shape": (self._rows, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self.handle, head)
        self._body.seek(0)
        shutil.copyfileobj(self._body, self.handle)
        self._body.close()


_WRITERS: dict[str, type[_Writer]] = {".csv": _Csv, ".parquet": _Parquet, ".npy": _Npy}


@contextmanager
def _writer(kind: str, output: str) -> Iterator[_Writer]:
    """A writer whose file is complete or not there."""
    import fsspec
    import pyarrow as pa

    files, target = fsspec.core.url_to_fs(output)
    draft = f"{target}.part"
    with contextlib.suppress(Exception):
        files.makedirs(files._parent(target), exist_ok=True)
    try:
        with files.open(draft, "wb") as handle:
            made = _WRITERS[kind](handle)
            yield made
            made.close()
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
            columns[field.name] = pa.array([], pa.float32())  # how many numbers a row would have nobody knows
            continue
        rows = arrow_to_numpy(column, field.name).reshape(table.num_rows, -1)
        for number in range(rows.shape[1]):
            columns[field.name if rows.shape[1] == 1 else f"{field.name}_{number}"] = rows[:, number]
    return pa.table(columns)
