"""What the caller of read_csv asked for, and whether pyarrow can do it or pandas' own reader has to."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.errors import ArgumentError, ColumnError, suggest
from orca.shards.frames import pandas
from orca.shards.readers.reading import checked_options

_REFUSED = ("filepath_or_buffer", "chunksize", "iterator", "dtype_backend")


@dataclass(frozen=True)
class CsvOptions:
    """The options of read_csv, checked; `more` is what only pandas knows."""

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
        """Whether pyarrow's reader honours all of it."""
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
        """Whether the files begin with a line of names."""
        return self.header == 0 or (self.header == "infer" and self.names is None)


def checked(
    usecols: Any, dtype: Any, names: Any, parse_dates: Any, index_col: Any, header: Any, sep: Any, more: dict[str, Any]
) -> CsvOptions:
    """Options from the arguments of read_csv."""
    more = dict(more)
    checked_options(more, pandas().read_csv, _REFUSED)
    if names is not None and len(set(names)) != len(list(names)):
        raise ArgumentError(f"names={list(names)!r} has a name twice.")
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
        raise ArgumentError(f"encoding={encoding!r} is not known.") from error


def _dtypes(dtype: Any) -> list[Any]:
    if dtype is None:
        return []
    return list(dtype.values()) if isinstance(dtype, dict) else [dtype]


def _simple(dtype: Any) -> bool:
    return textual(dtype) or _number(dtype) is not None


def textual(dtype: Any) -> bool:
    """Whether a column of this dtype is taken as it is written."""
    return dtype is str or dtype is object or str(dtype) in ("str", "string", "object")


def _number(dtype: Any) -> np.dtype[Any] | None:
    try:
        found = np.dtype(dtype)
    except TypeError:
        return None
    return found if found.kind in "iu" or found in (np.dtype("f4"), np.dtype("f8")) else None


def arrow_type(dtype: Any) -> Any:
    """The Arrow type that a column of this dtype is parsed as."""
    import pyarrow as pa

    return pa.string() if textual(dtype) else pa.from_numpy_dtype(_number(dtype))


def picked(names: Sequence[Any], wanted: Any, argument: str, label: str) -> list[Any]:
    """Names of `wanted` (names, numbers or a function), in the file's order; unknown ones are refused."""
    if wanted is None:
        return list(names)
    if callable(wanted):
        return [name for name in names if wanted(name)]
    chosen = []
    for entry in wanted:
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
    """The dtype that was asked for, by column."""
    if options.dtype is None:
        return {}
    if not isinstance(options.dtype, dict):
        return dict.fromkeys(names, options.dtype)
    picked(names, list(options.dtype), "dtype", label)
    return {names[key] if isinstance(key, int) and key not in names else key: v for key, v in options.dtype.items()}
