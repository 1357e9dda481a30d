"""Python functions that run on workers as they are: the part that all array libraries share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import numpy as np

from orca.core.arguments import shown
from orca.core.pickling import pickled
from orca.errors import ArgumentError, DataError, OrcaError
from orca.tensorframes.cells import Array, Cell
from orca.tensorframes.programs.base import Bound, Input, Output, Program, Result, Run
from orca.tensorframes.programs.functions import results_of
from orca.tensorframes.programs.probing import observed, samples

Function = Callable[..., Any]


class Library(ABC):
    """How functions of one array library are called. Objects are pickled."""

    @abstractmethod
    def native(self, array: Array) -> Any:
        """Return an array as the library's own."""

    @abstractmethod
    def array(self, value: Any) -> Array:
        """Return a result of the library as an array."""

    @abstractmethod
    def vectorized(self, function: Function, ranks: Mapping[str, int]) -> Function | None:
        """Return a function that computes many rows at once, given the ranks of its cells; None if there is none."""

    def prepare(self, threads: int) -> None:
        """Configure the library in a worker's process."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that workers import."""
        return ()


@dataclass(frozen=True)
class FunctionBound(Bound):
    """A pickled function with the types of its results."""

    blob: bytes = field(repr=False)
    library: Library
    inputs: tuple[str, ...]
    ranks: Mapping[str, int]
    outputs: tuple[Output, ...]
    tier: str
    key: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        return self.library.modules

    def start(self, threads: int) -> Run:
        self.library.prepare(threads)
        function = cloudpickle.loads(self.blob)
        if self.tier == "row":
            return lambda arrays: self._by_row(function, arrays)
        if self.tier == "vectorized":
            function = self.library.vectorized(function, self.ranks) or function
        return lambda arrays: self._at_once(function, arrays)

    def _at_once(self, function: Function, arrays: Sequence[Array]) -> list[Result]:
        native = {name: self.library.native(array) for name, array in zip(self.inputs, arrays, strict=True)}
        results = results_of(function, function(**native))
        return [self.library.array(self._named(results, output.name)) for output in self.outputs]

    def _by_row(self, function: Function, arrays: Sequence[Array]) -> list[Result]:
        rows: list[list[Array]] = [[] for _ in self.outputs]
        native = self.library.native
        # Without inputs there is one result, for all rows.
        for values in zip(*arrays, strict=True) if arrays else [()]:
            cells = {name: native(value) for name, value in zip(self.inputs, values, strict=True)}
            results = results_of(function, function(**cells))
            for place, output in enumerate(self.outputs):
                rows[place].append(self.library.array(self._named(results, output.name)))
        return list(rows)

    def _named(self, results: Mapping[str, Any], name: str) -> Any:
        if name not in results:
            raise DataError(
                f"The function returned {', '.join(results)} without {name!r}, which it returned when it was tried "
                "at the call. Return the same columns for all rows."
            )
        return results[name]


class FunctionProgram(Program):
    """A function of one array library."""

    form = "dict"
    names = None

    def __init__(self, function: Function, inputs: tuple[Input, ...], constants: Mapping[str, Any], library: Library):
        self.inputs = inputs
        self.constants = constants
        self._library = library
        self._blob = pickled(_with(function, constants), "fetches")
        self._shown = shown(function)

    def bind(self, cells: Mapping[str, Cell], rows: bool, text: str) -> Bound:
        library, function = self._library, cloudpickle.loads(self._blob)
        ranks = {name: len(cell.shape) for name, cell in cells.items()}
        dtypes: dict[str, str] = {}

        def call(arrays: dict[str, Any]) -> list[Array]:
            results = results_of(function, function(**{name: library.native(one) for name, one in arrays.items()}))
            values = {name: library.array(value) for name, value in results.items()}
            for name, value in values.items():
                dtypes.setdefault(name, _dtype(name, value))
            return [values[name] for name in dtypes]

        try:
            shapes = observed(cells, call, rows)
        except OrcaError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"fetches={self._shown} failed on sample values of the columns, {_listed(cells)}: "
                f"{type(error).__name__}: {error}. The function is tried at the call, to learn its results."
            ) from error
        outputs = tuple(Output(name, Cell(dtypes[name], shape)) for name, shape in zip(dtypes, shapes, strict=True))
        tier = "block" if not rows else self._tier(function, cells, ranks, outputs)
        key = hashlib.sha256(self._blob + repr((tuple(cells), ranks, outputs, tier, type(library))).encode())
        return FunctionBound(self._blob, library, tuple(cells), ranks, outputs, tier, key.hexdigest())

    def _tier(
        self, function: Function, cells: Mapping[str, Cell], ranks: Mapping[str, int], outputs: tuple[Output, ...]
    ) -> str:
        """Choose "vectorized" if many rows at once give what single rows do."""
        if not cells:
            return "row"
        one_by_one = FunctionBound(self._blob, self._library, tuple(cells), ranks, outputs, "row")
        try:
            if self._library.vectorized(function, ranks) is None:
                return "row"
            arrays = samples(list(cells.values()), 3, 4)
            whole = replace(one_by_one, tier="vectorized").start(0)(arrays)
            single = one_by_one.start(0)(arrays)
        except Exception:
            return "row"
        return "vectorized" if all(map(agree, whole, single)) else "row"


def agree(whole: Result, single: Result) -> bool:
    """Whether results of many rows at once are those of single rows, up to rounding."""
    try:
        one, two = np.asarray(whole), np.stack([np.asarray(value) for value in single])
    except ValueError:
        return False
    if one.shape != two.shape:
        return False
    if one.dtype.kind in "fc" or one.dtype.name == "bfloat16":
        return bool(np.allclose(one.astype("f8"), two.astype("f8"), rtol=1e-3, atol=1e-5, equal_nan=True))
    return bool(np.array_equal(one, two))


def _with(function: Function, constants: Mapping[str, Any]) -> Function:
    import functools

    return functools.partial(function, **constants) if constants else function


def _listed(cells: Mapping[str, Cell]) -> str:
    return ", ".join(f"{name} ({cell})" for name, cell in cells.items())


def _dtype(name: str, value: Array) -> str:
    if value.dtype.kind == "U" or (value.dtype.kind == "O" and all(isinstance(one, str) for one in value.flat)):
        return "string"
    if value.dtype.kind == "S" or (value.dtype.kind == "O" and all(isinstance(one, bytes) for one in value.flat)):
        return "binary"
    if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return str(value.dtype.name)
    raise ArgumentError(f"The function returned {name!r} with dtype {value.dtype}; expected numbers, text or bytes.")
