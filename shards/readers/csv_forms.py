"""The forms of the arguments of read_csv, checked before any file is read."""

from __future__ import annotations

import numbers
from typing import Any

from orca.core.arguments import check_flag, check_names, wrong
from orca.errors import ArgumentError
from orca.shards.frames import pandas


def check_forms(usecols: Any, dtype: Any, names: Any, parse_dates: Any, index_col: Any, header: Any, sep: Any) -> None:
    """Raise if an argument has a form that pandas does not know."""
    if usecols is not None and not callable(usecols):
        check_names("usecols", usecols)
    for entry in dtype.values() if isinstance(dtype, dict) else [dtype]:
        _check_dtype(entry)
    if isinstance(names, str | int):
        raise wrong("names", names, "a list of names")
    if names is not None:
        check_names("names", names)
    if index_col is not None and index_col is not False:
        check_names("index_col", index_col)
    if parse_dates is not None:
        _check_dates(parse_dates)
    if header is not None and not (isinstance(header, str) and header == "infer"):
        for line in header if isinstance(header, list | tuple) and header else [header]:
            if isinstance(line, bool) or not isinstance(line, numbers.Integral) or line < 0:
                raise wrong("header", header, 'the number of a line, a list of them, "infer" or None')
    if sep is not None and not (isinstance(sep, str) and sep):
        raise wrong("sep", sep, "a separator, or None for one that pandas detects")


def _check_dtype(dtype: Any) -> None:
    if dtype is None:
        return
    try:
        if isinstance(dtype, list | tuple) or (callable(dtype) and not isinstance(dtype, type)):
            raise TypeError("no dtype of one column")
        pandas().api.types.pandas_dtype(dtype)
    except TypeError as error:
        raise wrong("dtype", dtype, "a dtype, or a dict of dtypes by column") from error


def _check_dates(parse_dates: Any) -> None:
    if isinstance(parse_dates, list) and not parse_dates:
        return
    try:
        if isinstance(parse_dates, str | list | tuple):
            check_names("parse_dates", parse_dates)
        else:
            check_flag("parse_dates", parse_dates)
    except ArgumentError:
        raise wrong("parse_dates", parse_dates, "True, False or a list of columns") from None
