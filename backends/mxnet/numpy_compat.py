"""Lets `import mxnet` work on numpy 2: MXNet 1.9.1 reads names from numpy that numpy has dropped.

The names are there only while MXNet is imported. Afterwards MXNet's own modules see numpy through a module that
still has them; the rest of the process sees numpy as it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_RENAMED = {
    "product": "prod",
    "cumproduct": "cumprod",
    "sometrue": "any",
    "alltrue": "all",
    "in1d": "isin",
    "trapz": "trapezoid",
    "round_": "round",
    "msort": "sort",
    "float_": "float64",
    "unicode_": "str_",
    "string_": "bytes_",
    "row_stack": "vstack",
}
_NUMBERS = {
    **dict.fromkeys(("Inf", "INF", "PINF", "Infinity", "infty"), float("inf")),
    **dict.fromkeys(("NaN", "NAN"), float("nan")),
    "NINF": float("-inf"),
    "PZERO": 0.0,
    "NZERO": -0.0,
}
_FINANCIAL = ("mirr", "npv", "pmt", "ppmt", "pv", "rate", "fv", "ipmt", "irr", "nper")


def _dropped(numpy: Any) -> dict[str, Any]:
    """The names that this numpy lacks, with what stood for them."""
    known: dict[str, Any] = {**_NUMBERS, "int": int, "float": float, "object": object, "complex": complex, "bool": bool}
    known["asfarray"] = lambda array, dtype=numpy.float64: numpy.asarray(array, dtype)
    known |= {name: _gone(name) for name in _FINANCIAL}
    # A numpy that has an old name need not have the new one.
    known |= {old: getattr(numpy, new) for old, new in _RENAMED.items() if hasattr(numpy, new)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: value for name, value in known.items() if not hasattr(numpy, name)}


def _gone(name: str) -> Any:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise AttributeError(f"numpy has no {name} any more; the package numpy-financial has it.")

    return missing


class _Numpy(types.ModuleType):
    """numpy with the dropped names."""

    def __init__(self, numpy: Any, dropped: dict[str, Any]) -> None:
        super().__init__(numpy.__name__, numpy.__doc__)
        self.__dict__.update(dropped)
        self.__dict__["_orca_numpy"] = numpy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_orca_numpy"], name)


_depth = 0


@contextmanager
def dropped_names() -> Iterator[None]:
    """Numpy with its dropped names, for as long as the block runs; it may run inside another such block."""
    global _depth
    import numpy

    dropped = _dropped(numpy) if not _depth else {}
    numpy.__dict__.update(dropped)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        for name in dropped:
            numpy.__dict__.pop(name, None)
        if not _depth:
            _give_names(numpy, _Numpy(numpy, dropped))


def _give_names(numpy: Any, seen: _Numpy) -> None:
    """Let MXNet's modules see the other numpy."""
    for key, module in list(sys.modules.items()):
        if key == "mxnet" or key.startswith("mxnet."):
            for name, value in list(vars(module).items()):
                if value is numpy:
                    setattr(module, name, seen)


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # It says a line for every model that it makes faster.
        os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
        with dropped_names(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._inner.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds mxnet where Python would, and imports it with the names it needs."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "mxnet":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """From now on `import mxnet` works, whoever says it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
