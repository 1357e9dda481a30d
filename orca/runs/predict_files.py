"""Prediction from files to a file, piece by piece: the command `orca predict`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from orca.backends.worker.inference import name_outputs
from orca.core.machine import on_terminal
from orca.errors import ArgumentError, DataError
from orca.runs.output_files import OUTPUTS, output_writer
from orca.shards.readers.image_files import CHANNELS, ENDINGS, Picture, read_group
from orca.shards.readers.paths import File, listing, naming_file_in_errors
from orca.shards.readers.tables import common_schema, opened, tables

INPUTS = (".csv", ".parquet", ".npy", *ENDINGS)
_PIECE = 16
"""The minimum number of batches that are read, computed and written together."""
_PIECE_ROWS, _PIECE_BYTES = 4096, 32 << 20
"""Small batches are combined up to these limits: each piece becomes a row group of a .parquet file."""


class Predictor(Protocol):
    """The part of an OpenVINO estimator that is used here."""

    @property
    def spec(self) -> Any: ...

    def predict(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        feature_cols: Sequence[Any] | None = None,
        output_cols: Sequence[str] | None = None,
    ) -> Any: ...


@dataclass(frozen=True)
class Options:
    """Options of the command line that do not concern the model."""

    batch_size: int | None = None
    layout: str | None = None
    columns: tuple[str, ...] | None = None
    output_cols: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    progress: bool | None = None


@dataclass(frozen=True)
class Summary:
    """The rows that were predicted, and the time it took."""

    rows: int
    seconds: float


def predict_files(
    make_predictor: Callable[[str | None], Predictor], inputs: str, output: str, options: Options
) -> Summary:
    """Run a model over files and write its outputs, next to the columns of the input if it has any.

    Args:
        make_predictor: Creates the estimator for data of a layout such as "NHWC"; None is the model's own.
        inputs: A file, folder, glob or fsspec URL of files of one kind.
        output: The file to write; its suffix chooses the format.
        options: The options of the command line.

    Returns:
        The number of rows and the seconds.

    Raises:
        ArgumentError: If the output cannot be written in the chosen format.
        DataError: If the files are not of one kind or do not fit the model.
    """
    from tqdm.auto import tqdm

    suffix = _suffix(output, OUTPUTS)
    if suffix is None:
        raise ArgumentError(f"output {output!r}: expected a name that ends in {', '.join(OUTPUTS)}.")
    files = listing(inputs, endings=INPUTS)
    form = _form(files)
    layout = options.layout if options.layout or form != "images" else "NHWC"
    try:
        est = make_predictor(layout)
    except ArgumentError:
        if layout != options.layout:
            # Blame the model, not a layout that the user did not choose.
            _image_port(make_predictor(None).spec)
        raise
    rows_at_once = _piece_rows(est.spec, est.spec.batch_size(options.batch_size))
    pixels = options.size or _image_size(est.spec) if form == "images" else None
    source = _Source(files, form, rows_at_once, pixels, *(common_schema(files) if form == "table" else ()))
    show = on_terminal() if options.progress is None else options.progress
    rows, began = 0, time.perf_counter()
    with (
        output_writer(suffix, output) as writer,
        tqdm(total=source.rows(), unit="row", unit_scale=True, disable=not show) as bar,
    ):
        for passed_through, features in source.pieces(_channels(est.spec)):
            names = None if options.output_cols is None else list(options.output_cols)
            if form == "table":
                cols = None if options.columns is None else list(options.columns)
                table = est.predict(features, batch_size=options.batch_size, feature_cols=cols, output_cols=names)
                count = table.num_rows
            else:
                outputs = name_outputs(est.predict(features, batch_size=options.batch_size), names)
                count = len(next(iter(outputs.values())))
                table = passed_through | outputs
            writer.write(table)
            rows += count
            bar.update(count)
    return Summary(rows, time.perf_counter() - began)


def _suffix(path: str, suffixes: Sequence[str]) -> str | None:
    return next((suffix for suffix in suffixes if path.lower().endswith(suffix)), None)


def _form(files: list[File]) -> str:
    suffixes = {_suffix(file.url, INPUTS) for file in files}
    forms = {"table" if s in (".csv", ".parquet") else "array" if s == ".npy" else "images" for s in suffixes}
    if None in suffixes or len(forms) > 1 or (suffixes & {".csv", ".parquet"} and len(suffixes) > 1):
        raise DataError(
            f"input {files[0].label!r} and others: expected files of one kind: .csv, .parquet, .npy or images."
        )
    return forms.pop()


def _piece_rows(spec: Any, batch: int) -> int:
    row = sum(np.prod([side or 1 for side in port.shape[1:]]) * np.dtype(port.dtype).itemsize for port in spec.inputs)
    batches = min(_PIECE_ROWS, _PIECE_BYTES // max(1, int(row))) // batch
    return batch * max(_PIECE, batches)


def _image_port(spec: Any) -> Any:
    if len(spec.inputs) != 1 or len(spec.inputs[0].shape) != 4:
        inputs = ", ".join(map(str, spec.inputs))
        raise DataError(f"Images need a model with one input of four axes; this one has {inputs}.")
    return spec.inputs[0]


def _image_size(spec: Any) -> tuple[int, int] | None:
    """Return the height and width of the images that the model takes, if it fixes them."""
    port = _image_port(spec)
    height, width = (port.shape[2], port.shape[3]) if port.order is not None else (port.shape[1], port.shape[2])
    return None if height is None or width is None else (height, width)


def _channels(spec: Any) -> int:
    port = spec.inputs[0]
    if len(port.shape) != 4:
        return 3
    return (port.shape[1] if port.order is not None else port.shape[3]) or 3


@dataclass(frozen=True)
class _Source:
    """The input files, cut into pieces."""

    files: list[File]
    form: str
    size: int
    """The rows of a piece."""
    pixels: tuple[int, int] | None = None
    schema: Any = None
    """The columns of tables."""
    table_rows: int = 0

    def rows(self) -> int:
        """Count the rows of all files."""
        if self.form == "images":
            return len(self.files)
        if self.form == "array":
            return sum(len(self._array(file)) for file in self.files)
        return self.table_rows

    def pieces(self, channels: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield the columns that are passed through to the output, and the features of the model."""
        if self.form == "images":
            mode = next((mode for mode, count in CHANNELS.items() if count == channels), "RGB")
            width = max(len(file.url) for file in self.files)
            for low in range(0, len(self.files), self.size):
                group = [Picture(file, -1) for file in self.files[low : low + self.size]]
                columns = read_group(group, self.pixels, mode, width)
                yield {"path": columns["path"]}, columns["image"]
            return
        if not self.rows():
            # The output file still needs the right columns.
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
        with naming_file_in_errors(file):
            if file.local:
                array = np.load(file.url, mmap_mode="r", allow_pickle=False)
            else:
                with opened(file) as handle:
                    array = np.load(handle, allow_pickle=False)
        if array.ndim == 0:
            raise DataError(f"{file.label} holds a single number; expected an array of rows.")
        return np.asarray(array)
