"""Makes `import mxnet` work on numpy 2: MXNet 1.9.1 uses names that numpy has removed.

numpy has the names only while MXNet is imported. Afterwards MXNet's own modules access numpy through a proxy module
that still has them; the rest of the process sees numpy unchanged.
"""

from __future__ import annotations

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
    """Return the names that this numpy lacks, with their replacements."""
    builtin = {"int": int, "float": float, "object": object, "complex": complex, "bool": bool}
    names: dict[str, Any] = {**_NUMBERS, **builtin}
    names["asfarray"] = lambda array, dtype=numpy.float64: numpy.asarray(array, dtype)
    names |= {name: _gone(name) for name in _FINANCIAL}
    # A numpy that still has an old name may lack the new one.
    names |= {old: getattr(numpy, new) for old, new in _RENAMED.items() if hasattr(numpy, new)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: value for name, value in names.items() if not hasattr(numpy, name)}


def _gone(name: str) -> Any:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise AttributeError(f"numpy no longer has {name}; install numpy-financial, which does.")

    return missing


class _Numpy(types.ModuleType):
    """A numpy proxy with the removed names."""

    def __init__(self, numpy: Any, dropped: dict[str, Any]) -> None:
        super().__init__(numpy.__name__, numpy.__doc__)
        self.__dict__.update(dropped)
        self.__dict__["_orca_numpy"] = numpy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_orca_numpy"], name)


_depth = 0


@contextmanager
def dropped_names() -> Iterator[None]:
    """Add the removed names to numpy within the block; blocks may be nested."""
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
            _replace_numpy(numpy, _Numpy(numpy, dropped))


def _replace_numpy(numpy: Any, proxy: _Numpy) -> None:
    """Replace numpy by the proxy in MXNet's modules."""
    for key, module in list(sys.modules.items()):
        if key == "mxnet" or key.startswith("mxnet."):
            for name, value in list(vars(module).items()):
                if value is numpy:
                    setattr(module, name, proxy)


class _Loader:
    """Wraps the loader of an MXNet module. It derives from no class of importlib.abc, which is slow to import."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # MXNet prints a line for every model that it optimizes.
        os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
        with dropped_names(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._inner.exec_module(module)


class _Finder:
    """Finds mxnet where Python would, and imports it with the names that it needs."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "mxnet":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader)
            spec.loader = loader
        return spec


def install() -> None:
    """Make `import mxnet` work for all code in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
