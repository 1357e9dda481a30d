"""Functions written with numpy or with plain operators.

A function of rows that does nothing but elementwise arithmetic is computed for all rows at once. What it does is seen
by calling it with objects that support nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from orca.tensorframes.cells import Array
from orca.tensorframes.programs.library import Function, Library


class NumpyLibrary(Library):
    """Arrays of numpy; a single row's number is a numpy scalar."""

    def native(self, array: Array) -> Any:
        return array

    def array(self, value: Any) -> Array:
        # numpy would cut zeros off the end of bytes.
        return np.array(value, dtype=object) if isinstance(value, bytes | str) else np.asarray(value)

    def vectorized(self, function: Function, ranks: Mapping[str, int]) -> Function | None:
        if len(set(ranks.values())) != 1:
            return None  # cells of different ranks would be broadcast along other axes than within a row
        rank = next(iter(ranks.values()))
        try:
            results = function(**{name: _Traced(rank) for name in ranks})
        except Exception:
            return None
        elementwise = isinstance(results, Mapping) and all(type(value) is _Traced for value in results.values())
        return function if elementwise else None


class _NotElementwiseError(Exception):
    """A function does more than elementwise arithmetic."""


class _Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a cell; any use other than as an operand of elementwise functions raises."""

    def __init__(self, rank: int) -> None:
        self.__dict__["_rank"] = rank

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        rank = self.__dict__["_rank"]
        if method != "__call__" or ufunc.signature is not None or options:
            raise _NotElementwiseError
        for value in inputs:
            if type(value) is not _Traced and (np.ndim(value) > rank or np.asarray(value).dtype.kind not in "biuf"):
                raise _NotElementwiseError
        return _Traced(rank) if ufunc.nout == 1 else tuple(_Traced(rank) for _ in range(ufunc.nout))

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise _NotElementwiseError

    __array_function__ = __array__ = __getattr__ = __setattr__ = __bool__ = __len__ = __iter__ = _refuse
    __getitem__ = __setitem__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = __round__ = _refuse
    __str__ = __repr__ = __format__ = __matmul__ = __rmatmul__ = _refuse
