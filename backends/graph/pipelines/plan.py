"""How a graph runs on records: where they come from, and the parts of the graph that they pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orca.backends.graph.pipelines.freezing import Part
from orca.backends.graph.pipelines.records import Format, Piece


@dataclass(frozen=True)
class ReaderSource:
    """Records of files, as a reader operation returns them."""

    form: Format
    picks: tuple[int, ...]
    """Which of key (0) and content (1) are used."""
    at_once: int = 0
    """How many records the operation returns together; 0 for one, without an axis of records."""


@dataclass(frozen=True)
class ValueSource:
    """Values that the graph itself holds, such as names of files, one after another."""

    columns: tuple[Any, ...]


@dataclass(frozen=True)
class DatasetSource:
    """A tf.data pipeline, with the file names or the rows of a unit to be set."""

    graph: bytes
    dtypes: tuple[int, ...]
    picks: tuple[int, ...]
    """Which components of an element are used."""
    mode: str
    """"files", "rows" (of the first dataset) or "elements" (of the last one)."""
    form: Format | None = None


@dataclass(frozen=True)
class Rows:
    """A range of the rows of a source without files, or every n-th element."""

    low: int
    high: int


Unit = tuple[int, Sequence[Piece] | Rows]
"""What one task computes: the number of a branch, and the part of its source."""


@dataclass(frozen=True)
class Step:
    """A part of the graph in front of a queue, and how the queue groups what it receives."""

    part: Part
    splits: bool
    """Whether the rows of a result are put into the queue one by one."""
    rows: int
    """How many elements are taken out together; 0 for one, without an axis of rows."""


@dataclass(frozen=True)
class Branch:
    """A source and the steps between it and the network."""

    source: ReaderSource | ValueSource | DatasetSource
    steps: tuple[Step, ...]
    batched: bool
    """Whether what arrives at the network has an axis of rows."""
    files: tuple[str, ...] | None = None
    """The files that the graph names."""
    origin: str = ""
    """The node that names them."""
    takes_files: bool = False
    """Whether other files can be read in their place."""
    batch_rows: int | None = None
    """The number of rows in the batches of a tf.data pipeline, if it is fixed."""


@dataclass(frozen=True)
class Plan:
    """All that a worker needs, except the records."""

    key: str
    """Identifies the plan, so that a process keeps its sessions."""
    branches: tuple[Branch, ...]
    network: Part
    names: tuple[str, ...]
    """The keys of the results."""
    row_bytes: int
    fixed_rows: int | None = None
    """The number of rows that the network needs in each batch."""
    empty: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Dtype and shape of a row of each result as far as they are known, for files without a record."""
    threads: int | None = None
