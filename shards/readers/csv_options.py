"""The options of read_csv, and whether pyarrow's reader supports them or pandas' own is needed."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import ArgumentError, ColumnError, DataError, suggest
from orca.shards.frames import pandas
from orca.shards.readers.csv_forms import check_forms
from orca.shards.readers.reading import check_options

_REFUSED = ("filepath_or_buffer", "chunksize", "iterator", "dtype_backend")


@dataclass(frozen=True)
class CsvOptions:
    """The checked options of read_csv; `more` holds those that only pandas supports."""

    usecols: Any
    dtype: Any
    names: list[Any] | None
    dates: list[Any]
    index: list[Any]
    header: Any
    sep: str
    quote: str
    date_format: Any
    more: dict[str, Any]

    @property
    def fast(self) -> bool:
        """Whether pyarrow's reader supports all options."""
        return (
            not self.more
            and self.header in ("infer", 0, None)
            and isinstance(self.sep, str)
            and len(self.sep) == len(self.quote) == 1
            and (self.sep + self.quote).isascii()
            and all(_simple(dtype) for dtype in _dtypes(self.dtype))
        )

    @property
    def headed(self) -> bool:
        """Whether the files begin with a header."""
        return self.header == 0 or (self.header == "infer" and self.names is None)

    @property
    def positions(self) -> list[int] | None:
        """The columns that `names` stands for, if there is one name for each position in `usecols`."""
        if self.names is None or not isinstance(self.usecols, list) or len(self.usecols) != len(self.names):
            return None
        if not all(isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0 for entry in self.usecols):
            return None
        return sorted(self.usecols) if len(set(self.usecols)) == len(self.usecols) else None

    def names_of(self, columns: Sequence[Any], label: str) -> list[Any]:
        """Return the names of a file's columns, which `names` may replace, all of them or those in `usecols`."""
        if self.names is None or len(self.names) == len(columns):
            return list(columns if self.names is None else self.names)
        if self.positions is not None and self.positions[-1] < len(columns):
            # Columns that are not read need names of their own, which no column that is read may have.
            renamed: list[Any] = [f"(column {position})" for position in range(len(columns))]
            for position, name in zip(self.positions, self.names, strict=True):
                renamed[position] = name
            return renamed
        if self.headed:
            raise DataError(
                f"{label} has {len(columns)} columns, names= has {len(self.names)}. Give a name for each column, or "
                "usecols= with one position for each name."
            )
        return list(self.names)


def checked(
    usecols: Any, dtype: Any, names: Any, parse_dates: Any, index_col: Any, header: Any, sep: Any, more: dict[str, Any]
) -> CsvOptions:
    """Check the arguments of read_csv."""
    more = dict(more)
    check_options(more, pandas().read_csv, _REFUSED)
    check_forms(usecols, dtype, names, parse_dates, index_col, header, sep)
    if names is not None and len(set(names)) != len(list(names)):
        raise ArgumentError(f"names={list(names)!r} contains a name twice.")
    if isinstance(dtype, defaultdict):
        raise ArgumentError("dtype= is a defaultdict; give a dict, or one dtype for all columns.")
    if isinstance(usecols, str):
        usecols = [usecols]
    index = [] if index_col is None or index_col is False else _listed(index_col)
    if parse_dates is True and not index:
        raise ArgumentError("parse_dates=True reads the index as dates; give index_col= or the names of columns.")
    dates = index if parse_dates is True else _listed(parse_dates) if parse_dates else []
    quote = more.pop("quotechar", '"')
    date_format = more.pop("date_format", None)
    if _is_utf8(more.get("encoding")):
        more.pop("encoding", None)
    plain = {"on_bad_lines": ("error",), "engine": (None, "pyarrow"), "low_memory": (True, False)}
    for name, values in plain.items():
        if name in more and more[name] in values:
            del more[name]
    listed = None if names is None else list(names)
    usecols = usecols if usecols is None or callable(usecols) else list(usecols)
    return CsvOptions(usecols, dtype, listed, dates, index, header, sep, quote, date_format, more)


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int) else list(value)


def _is_utf8(encoding: str | None) -> bool:
    if encoding is None:
        return True
    try:
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")
    except LookupError as error:
        raise ArgumentError(f"encoding={encoding!r} is unknown to Python.") from error


def _dtypes(dtype: Any) -> list[Any]:
    if dtype is None:
        return []
    return list(dtype.values()) if isinstance(dtype, dict) else [dtype]


def _simple(dtype: Any) -> bool:
    return textual(dtype) or _number(dtype) is not None


def textual(dtype: Any) -> bool:
    """Whether a column of this dtype is kept as it is written."""
    return dtype is str or dtype is object or str(dtype) in ("str", "string", "object")


def _number(dtype: Any) -> np.dtype[Any] | None:
    try:
        number = np.dtype(dtype)
    except TypeError:
        return None
    return number if number.kind in "iu" or number in (np.dtype("f4"), np.dtype("f8")) else None


def arrow_type(dtype: Any) -> Any:
    """Return the Arrow type that a column of this dtype is parsed as."""
    import pyarrow as pa

    return pa.string() if textual(dtype) else pa.from_numpy_dtype(_number(dtype))


def picked(names: Sequence[Any], selection: Any, argument: str, label: str) -> list[Any]:
    """Return the names in `selection` (names, positions or a function) in the file's order; raise for unknown ones."""
    if selection is None:
        return list(names)
    if callable(selection):
        return [name for name in names if selection(name)]
    chosen = []
    for entry in selection:
        if isinstance(entry, int) and entry not in names and -len(names) <= entry < len(names):
            chosen.append(names[entry])
        elif entry in names:
            chosen.append(entry)
        else:
            raise ColumnError(
                f"{argument}=[{entry!r}] is not in {label}. Columns: {', '.join(map(str, names))}."
                + suggest(str(entry), map(str, names))
            )
    return [name for name in names if name in chosen]


def dtypes_of(options: CsvOptions, names: Sequence[Any], label: str) -> dict[Any, Any]:
    """Return the requested dtypes by column."""
    if options.dtype is None:
        return {}
    if not isinstance(options.dtype, dict):
        return dict.fromkeys(names, options.dtype)
    picked(names, list(options.dtype), "dtype", label)
    return {names[key] if isinstance(key, int) and key not in names else key: v for key, v in options.dtype.items()}
