"""The contract of a program: tensor code of one framework that runs on arrays in any process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orca.errors import ArgumentError
from orca.tensorframes.cells import Array, Cell, Shape

Result: TypeAlias = Array | list[Any]
"""An array whose first axis is the rows, or one array per row."""
Run: TypeAlias = Callable[[Sequence[Array]], Sequence[Result]]


@dataclass(frozen=True)
class Input:
    """An input of a program."""

    name: str
    dtype: str | None = None
    """The dtype that it takes; None for that of the column."""
    shape: Shape | None = None
    """Its shape as far as it is known."""
    optional: bool = False
    """Whether it has a default value, so that it need not be fed."""


@dataclass(frozen=True)
class Output:
    """A result of a bound program: its name, and its dtype and shape, which includes the rows of a block."""

    name: str
    cell: Cell


class Bound(ABC):
    """A program for columns of known types. It travels to workers, where it is opened once per process."""

    outputs: tuple[Output, ...]
    key: str
    """Equal programs have equal keys."""
    tier: str
    """How rows are computed: "vectorized", "map_fn" or "row"; "block" for blocks."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a process imports to run the program, so that it can start with them."""
        return ()

    @abstractmethod
    def start(self, threads: int) -> Run:
        """Prepare to run in this process; `threads` is 0 for as many as there are cores."""

    def open(self, threads: int = 0) -> Run:
        """Return the function that computes the outputs of arrays; a process keeps the last ones that it opened."""
        place = (self.key, threads)
        run = _opened.pop(place, None) or self.start(threads)
        _opened[place] = run
        while len(_opened) > _KEPT:
            _opened.popitem(last=False)
        return run


_KEPT = 16
_opened: OrderedDict[tuple[str, int], Run] = OrderedDict()


class Program(ABC):
    """Tensor code as the user gave it; nothing that changes later has an effect on it."""

    inputs: tuple[Input, ...]
    form: str
    """How results are returned to the user: "one", "list" or "dict"."""
    names: tuple[str, ...] | None
    """Names of the outputs, if they are known before the program is bound."""
    constants: Mapping[str, Any]
    """Values of inputs that no column feeds."""

    @abstractmethod
    def bind(self, cells: Mapping[str, Cell], rows: bool, text: str) -> Bound:
        """Return the program for these types of its inputs.

        Args:
            cells: The dtype and shape of each input that a column feeds: of one cell if `rows`, else of a block, whose
                first size is None.
            rows: Whether the program computes one row; the bound program then takes any number of rows at once.
            text: "string" or "binary": the dtype of results that are text or bytes, if the framework has one type for
                both.

        Raises:
            ArgumentError: If the program does not accept such inputs.
        """


def check_outputs(names: Sequence[str]) -> None:
    """Raise if two results have one name."""
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(
                f"Two results are called {name!r}, and each is to be a column. Name them with tf.identity(tensor, "
                'name=...), or give fetches={"column": tensor}.'
            )
