"""Reads a csv file, or a range of its lines, with pyarrow, or with pandas for options that pyarrow does not support."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import DataError, OrcaError
from orca.shards.frames import pandas
from orca.shards.readers import csv_faults as faults
from orca.shards.readers.csv_options import CsvOptions, arrow_type, dtypes_of, picked, textual
from orca.shards.readers.paths import File, contents
from orca.shards.readers.reading import join_frames
from orca.shards.readers.schemas import indexed

WORDS = {"picking": "usecols", "advice": "Give dtype={{{name!r}: ...}}."}

_BOM = b"\xef\xbb\xbf"
_MISSING = "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null"
"""Texts that pandas reads as missing values; pyarrow's own list is shorter."""
_NEVER = "\x01%H\x01"
"""A date format that no text has: dates stay text, as in pandas, unless parse_dates= names the column."""


@dataclass(frozen=True)
class Piece:
    """A file, or its lines between two byte positions; the columns in `text` are kept as they are written."""

    file: File
    start: int = 0
    stop: int | None = None
    threads: bool = False
    text: tuple[Any, ...] = ()


def read_group(pieces: list[Piece], options: CsvOptions) -> Any:
    """Read all pieces of one shard into one frame."""
    frames = [read_piece(piece, options) for piece in pieces]
    return join_frames(frames, [piece.file.label for piece in pieces], **WORDS)


def read_piece(piece: Piece, options: CsvOptions) -> Any:
    """Read one piece into a frame, parse its dates and set its index."""
    label = piece.file.label
    if options.fast:
        data = contents(piece.file)
        names, begin = header(data, options, label)
        span = (max(piece.start, begin), len(data) if piece.stop is None else piece.stop)
        parser = _Parser(data, span, [str(name) for name in names], options, piece.threads, label)
        frame = _by_pyarrow(parser, names, piece, options)
    else:
        parser, frame = None, _by_pandas(piece, options)
    for name in picked(list(frame.columns), options.dates, "parse_dates", label) if options.dates else []:
        frame[name] = _dates(frame[name], name, parser, options, label)
    index = [picked(list(frame.columns), [entry], "index_col", label)[0] for entry in options.index]
    return indexed(frame, index)


def header(data: Any, options: CsvOptions, label: str) -> tuple[list[Any], int]:
    """Return the names of the columns and the position of the first row."""
    begin = len(_BOM) if bytes(data[:3]) == _BOM else 0
    start = begin
    while start < len(data) and data[start : start + 1] in (b"\n", b"\r"):
        start += 1
    if start == len(data):
        raise DataError(f"{label} has no line with data.")
    newline = b"\n" if data.find(b"\n", start) >= 0 else b"\r"
    end, quote = start, options.quote.encode()
    while True:
        position = data.find(newline, end)
        end = len(data) if position < 0 else position + 1
        if bytes(data[start:end]).count(quote) % 2 == 0 or end == len(data):
            break
    try:
        text = bytes(data[start:end]).decode()
    except UnicodeDecodeError as error:
        raise faults.undecodable(label, data, start) from error
    fields = pandas().read_csv(io.StringIO(text), nrows=0, sep=options.sep, quotechar=options.quote, index_col=False)
    columns = list(fields.columns) if options.headed else list(range(len(fields.columns)))
    return options.names_of(columns, label), end if options.headed else begin


def _by_pyarrow(parser: _Parser, names: list[Any], piece: Piece, options: CsvOptions) -> Any:
    import pyarrow as pa

    label, positions = piece.file.label, options.positions
    columns = (
        picked(names, options.usecols, "usecols", label)
        if positions is None or positions[-1] >= len(names)
        else [names[position] for position in positions]
    )
    dtypes = {name: dtype for name, dtype in dtypes_of(options, names, label).items() if name in columns}
    dtypes |= dict.fromkeys(piece.text, str)
    types = {str(name): arrow_type(dtype) for name, dtype in dtypes.items()}
    dates = picked(columns, options.dates, "parse_dates", label) if options.dates else []
    types |= {str(name): pa.string() for name in dates}
    table = parser.read([str(name) for name in columns], types)
    fields = list(table.schema)
    frame = _nan_for_missing(table.to_pandas(split_blocks=True, self_destruct=True))
    frame.columns = columns
    for name, field in zip(columns, fields, strict=True):
        if pa.types.is_boolean(field.type) and frame[name].dtype == object:
            frame[name] = frame[name].where(frame[name].notna(), np.nan)
    for name, dtype in dtypes.items():
        column = frame[name]
        if not textual(dtype) and np.dtype(dtype).kind in "iu" and column.dtype.kind == "f":
            row = int(np.argmax(column.isna().to_numpy()))
            raise DataError(
                f"{label}, line {parser.line_of_row(row)}: column {name!r} is empty here, "
                f"so it cannot be {np.dtype(dtype)}. Give dtype={{{name!r}: 'float64'}} or 'Int64'."
            )
        # Before pandas 3 text has dtype object, and astype(str) would turn missing values into the text "nan".
        is_text = dtype is str or getattr(pandas().api.types.pandas_dtype(dtype), "kind", "") == "U"
        if name not in dates and not is_text and column.dtype != dtype:
            frame[name] = column.astype(dtype)
    return frame


def _nan_for_missing(frame: Any) -> Any:
    """Mark missing text by NaN, as pandas does when it reads a file; before pandas 3 Arrow leaves None there."""
    for name in frame.select_dtypes(object).columns:
        missing = frame[name].isna()
        if missing.any():
            frame[name] = frame[name].mask(missing, np.nan)
    return frame


class _Parser:
    """pyarrow's reader on some bytes of a file."""

    def __init__(
        self, data: Any, span: tuple[int, int], names: list[str], options: CsvOptions, threads: bool, label: str
    ) -> None:
        self._data, self._span, self._names, self._label = data, span, names, label
        self._sep, self._quote, self._threads = options.sep, options.quote, threads
        self._quoted = data.find(options.quote.encode(), *span) >= 0
        if self._quoted:
            self._check_quotes()

    def _check_quotes(self) -> None:
        # pyarrow silently reads everything after an open quote as one value.
        step, (start, stop) = 1 << 24, self._span
        sign = self._quote.encode()
        if sum(bytes(self._data[at : min(at + step, stop)]).count(sign) for at in range(start, stop, step)) % 2:
            try:
                pandas().read_csv(
                    io.BytesIO(self._data[start:stop]), header=None, usecols=[0], sep=self._sep, quotechar=self._quote
                )
            except Exception as error:
                if "EOF inside string" in str(error):
                    raise faults.unclosed(self._label, self._data, self._span, self._sep, self._quote) from error

    def line_of_row(self, row: int) -> int | None:
        """Return the line of the file that a row of these bytes begins on."""
        return faults.line_of_row(self._data, self._span, self._sep, self._quote, row)

    def read(self, columns: list[str], types: dict[str, Any]) -> Any:
        """Read these columns into a table with the types that pandas would have inferred."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._read(columns, types)
        for position, field in enumerate(table.schema):
            column, name = table.column(position), field.name
            if name in types:
                continue
            if pa.types.is_date(field.type):
                column = column.cast(pa.string())
            elif pa.types.is_time(field.type):
                column = self._read([name], {name: pa.string()}).column(0)
            elif pa.types.is_null(field.type) and table.num_rows:
                column = column.cast(pa.float64())
            elif pa.types.is_binary(field.type):
                raise faults.undecodable(self._label, self._data, self._span[0])
            elif pa.types.is_floating(field.type):
                ends = pc.min_max(column).as_py()
                if ends["max"] is not None and max(abs(ends["max"]), abs(ends["min"])) >= 2**63:
                    column = self._large(name, column)
            if column is not table.column(position):
                table = table.set_column(position, name, column)
        return table

    def _large(self, name: str, column: Any) -> Any:
        """Read integers that int64 cannot hold as uint64, else as text; never rounded to floats."""
        import pyarrow as pa
        import pyarrow.compute as pc

        text = self._read([name], {name: pa.string()}).column(0)
        if pc.any(pc.invert(pc.match_substring_regex(text, r"^\s*[+-]?\d+\s*$"))).as_py():
            return column
        with contextlib.suppress(pa.ArrowInvalid):
            return text if text.null_count else text.cast(pa.uint64())
        return text

    def _read(self, columns: list[str], types: dict[str, Any], block: int = 1 << 20) -> Any:
        import pyarrow as pa
        import pyarrow.csv as pc

        start, stop = self._span
        if start >= stop:
            return pa.table({name: pa.array([], types.get(name, pa.null())) for name in columns})
        try:
            return pc.read_csv(
                pa.BufferReader(pa.py_buffer(self._data).slice(start, stop - start)),
                pc.ReadOptions(column_names=self._names, use_threads=self._threads, block_size=block),
                pc.ParseOptions(delimiter=self._sep, quote_char=self._quote, newlines_in_values=self._quoted),
                pc.ConvertOptions(
                    include_columns=columns,
                    column_types=types,
                    strings_can_be_null=True,
                    null_values=_MISSING.split("|"),
                    true_values=["True", "TRUE", "true"],
                    false_values=["False", "FALSE", "false"],
                    timestamp_parsers=[_NEVER],
                ),
            )
        except pa.ArrowInvalid as error:
            whole = min(stop - start + 1, 2**31 - 1)
            if "straddling" in str(error) and block < whole:
                return self._read(columns, types, whole)
            raise faults.explained(
                error, self._label, self._data, self._span, self._names, self._sep, self._quote
            ) from error


def _engine(options: CsvOptions) -> dict[str, Any]:
    """Return the reader of pandas to use, named: pandas would warn that it takes the slow one, or refuse."""
    engine = options.more.get("engine")
    if engine is None:
        plain_sep = isinstance(options.sep, str) and (len(options.sep.encode()) == 1 or options.sep == r"\s+")
        needs_python = not plain_sep or len(options.quote.encode()) != 1 or options.more.get("skipfooter")
        engine = "python" if needs_python or callable(options.more.get("on_bad_lines")) else "c"
    # In pieces, a column may get several types.
    return {"engine": engine, "low_memory": False} if engine == "c" else {"engine": engine}


def _by_pandas(piece: Piece, options: CsvOptions) -> Any:
    file, label = piece.file, piece.file.label
    more = {**options.more, **_engine(options)}
    if not file.local and file.storage:
        more["storage_options"] = file.storage
    more |= {"names": options.names, "header": options.header, "sep": options.sep, "quotechar": options.quote}
    if file.size == 0:
        contents(file)
    try:
        head = {name: value for name, value in more.items() if name not in ("skipfooter", "nrows")}
        if options.positions is not None:
            names = columns = list(options.names or ())
        else:
            names = list(pandas().read_csv(file.url, nrows=0, **head).columns)
            columns = picked(names, options.usecols, "usecols", label)
        dtypes = {name: dtype for name, dtype in dtypes_of(options, names, label).items() if name in columns}
        dtypes |= dict.fromkeys(picked(columns, options.dates, "parse_dates", label) if options.dates else [], str)
        usecols = None if options.usecols is None else options.positions or columns
        with warnings.catch_warnings():
            # Without an index column, pandas truncates rows that are longer than the header and only warns.
            warnings.filterwarnings("error", message="Length of header or names")
            frame = pandas().read_csv(file.url, usecols=usecols, dtype=dtypes or None, index_col=False, **more)
    except OrcaError:
        raise
    except pandas().errors.ParserWarning as error:
        raise DataError(f"{label}: the rows have more fields than there are names. Give names= for all.") from error
    except Exception as error:
        encoding = str(more.get("encoding") or "utf-8")
        raise faults.of_pandas(error, label, contents(file), str(options.sep), options.quote, encoding) from error
    return frame


def _dates(column: Any, name: Any, parser: _Parser | None, options: CsvOptions, label: str) -> Any:
    """Parse a column of text as dates; ambiguous dates raise, because files might differ in their format."""
    pd, date_format = pandas(), options.date_format
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column
    date_format = date_format.get(name) if isinstance(date_format, dict) else date_format
    text = column.dropna()
    dayfirst = options.more.get("dayfirst")
    if date_format is None and dayfirst is None and len(text):
        guess = pd.tseries.api.guess_datetime_format(str(text.iloc[0])) or ""
        if guess[:2] in ("%d", "%m") and guess[3:5] in ("%d", "%m"):
            raise DataError(
                f"{label}: column {name!r} has dates like {text.iloc[0]!r}, in which day and month can be mixed up. "
                "Give date_format=, for instance date_format='%d/%m/%Y'."
            )
    try:
        return pd.to_datetime(column, format=date_format, dayfirst=bool(dayfirst))
    except Exception as error:
        dates = pd.to_datetime(column, format=date_format, dayfirst=bool(dayfirst), errors="coerce")
        wrong = np.flatnonzero((dates.isna() & column.notna()).to_numpy())
        line = parser.line_of_row(int(wrong[0])) if parser and len(wrong) else None
        value = f"has {column.iloc[wrong[0]]!r}, which is not a date" if len(wrong) else f"holds no dates: {error}"
        raise DataError(f"{label}{f', line {line}' if line else ''}: column {name!r} {value}.") from error
