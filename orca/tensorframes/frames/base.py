"""The contract of a frame: one kind of data with named columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from orca.tensorframes.cells import Column, Shape
from orca.tensorframes.steps import MapStep, ReduceStep


class Frame(ABC):
    """One kind of data. An object belongs to one call and holds the user's object as `data`."""

    rows_as_block: ClassVar[bool] = False
    """Whether map_rows runs a program whose inputs are blocks as map_blocks would."""
    lazy: ClassVar[bool] = False
    """Whether rows are computed later, so that shapes are kept with the columns."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @staticmethod
    @abstractmethod
    def accepts(data: object) -> bool:
        """Whether this class is for such data, by the name of its class: nothing heavy is imported."""

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """Return the columns; where rows are computed later, none is computed for it."""

    @abstractmethod
    def map(self, step: MapStep) -> Any:
        """Return the data with the new columns before its own, or with `trim` only these."""

    @abstractmethod
    def reduce(self, step: ReduceStep) -> list[Any]:
        """Return Arrow tables of partial results, in the order of the rows."""

    @abstractmethod
    def aggregate(self, step: ReduceStep) -> Any:
        """Return one row per key: the keys and the results."""

    @abstractmethod
    def shapes(self) -> dict[str, Shape]:
        """Read all rows and return the shape of the cells of each column that can be a tensor."""

    @abstractmethod
    def with_shapes(self, shapes: Mapping[str, Shape]) -> Any:
        """Return the data with these shapes of its cells known or checked."""
