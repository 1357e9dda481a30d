"""Plans a pipeline on the driver: checks the names, cuts the graph, and divides its files into units of work."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph.pipelines import datasets
from orca.backends.graph.pipelines.cutting import check_targets, trace
from orca.backends.graph.pipelines.freezing import Part, Source, with_constants
from orca.backends.graph.pipelines.plan import Branch, DatasetSource, Plan, ReaderSource, Rows, Unit, ValueSource
from orca.backends.graph.pipelines.records import Format
from orca.backends.graph.pipelines.units import units_of
from orca.backends.graph.program import Array
from orca.errors import ArgumentError, DataError
from orca.shards.adapters.tf_graphs import Graph
from orca.shards.readers.paths import File, listing

_UNKNOWN = 64
"""What an axis of unknown length counts for the size of a row."""


@dataclass(frozen=True)
class Work:
    """A plan, and the units that its workers compute."""

    plan: Plan
    units: list[Unit]


def plan_work(
    graph_def: Any,
    values: Mapping[str, Array],
    nodes: Mapping[str, str],
    files: Sequence[File] | None,
    feeds: Mapping[str, Any],
    *,
    count: int,
    exact: bool,
    shard_bytes: int,
    threads: int | None,
) -> Work:
    """Return what the workers have to do.

    Args:
        graph_def: The graph.
        values: The values of its variables.
        nodes: The nodes to compute, by the key of the result.
        files: Files to read in place of those that the graph names.
        feeds: Values of placeholders.
        count: The number of units.
        exact: Whether there must not be more units, however large they are.
        shard_bytes: The approximate size of the results of a unit.
        threads: The number of threads that work on one unit.
    """
    source = Source(with_constants(graph_def, feeds), values)
    check_targets(source, list(nodes.values()))
    urls = None if files is None else [file.url for file in files]
    network, branches = trace(source, list(nodes.values()), urls)
    plan = _plan(network, branches, list(nodes), threads)
    most = 2**62 if exact else max(1, shard_bytes // plan.row_bytes)
    units = [unit for number in range(len(branches)) for unit in _units(plan, number, files, count, most)]
    if not units:
        raise DataError("All files that the graph reads are empty (0 bytes).")
    return Work(plan, units)


def _plan(network: Part, branches: Sequence[Branch], names: Sequence[str], threads: int | None) -> Plan:
    """Look at the results of the network: the size of a row, and whether it needs batches of one size."""
    graph = v1.Graph()
    with graph.as_default():
        v1.import_graph_def(v1.GraphDef.FromString(network.graph), name="")
    batched = branches[0].batched
    fixed, row_bytes, empty = None, 0, []
    for name, fetch in zip(names, network.fetches, strict=True):
        tensor = graph.get_tensor_by_name(fetch)
        sizes = None if tensor.shape.rank is None else tensor.shape.as_list()
        if batched and sizes is not None:
            rows = _batch_rows(branches[0])
            if not sizes or (None not in (sizes[0], rows) and sizes[0] != rows):
                raise ArgumentError(
                    f"nodes={name!r} has the shape {tuple(sizes)}, but the graph makes batches: its first axis must be "
                    "the rows."
                )
            fixed, sizes = sizes[0] or fixed, sizes[1:]
        dtype = object if tensor.dtype.base_dtype == v1.string else tensor.dtype.base_dtype.as_numpy_dtype
        known = [size or 0 for size in sizes or ()]
        row_bytes += int(np.prod([size or _UNKNOWN for size in sizes or (None,)])) * np.dtype(dtype).itemsize
        empty.append((np.dtype(dtype).str, tuple(known)))
    return Plan(
        uuid.uuid4().hex, tuple(branches), network, tuple(names), max(1, row_bytes), fixed, tuple(empty), threads
    )


def _batch_rows(branch: Branch) -> int | None:
    """Return the number of rows of a full batch, as far as it is known."""
    sizes = [step.rows for step in branch.steps if step.rows]
    if sizes:
        return sizes[-1]
    return branch.source.at_once if isinstance(branch.source, ReaderSource) else branch.batch_rows


def _units(plan: Plan, number: int, files: Sequence[File] | None, count: int, most: int) -> list[Unit]:
    """Return the units of a branch."""
    branch = plan.branches[number]
    source = branch.source
    if files is not None and not branch.takes_files:
        raise ArgumentError(
            f"files= cannot be used: what the graph reads at {branch.origin!r} is more than a list of files."
        )
    if isinstance(source, DatasetSource) and source.mode == "elements":
        return [(number, Rows(index, count)) for index in range(count)]
    if isinstance(source, ValueSource) and files is None:
        return [(number, rows) for rows in _ranges(len(source.columns[0]), count, most)]
    if isinstance(source, DatasetSource) and source.mode == "rows":
        return [(number, rows) for rows in _ranges(datasets.row_count(Graph(source.graph)), count, most)]
    listed_files = list(files) if files is not None else _graph_files(branch)
    form = Format("whole") if isinstance(source, ValueSource) else source.form or Format("whole")
    if not sum(file.size for file in listed_files):
        return []
    return [(number, pieces) for pieces in units_of(listed_files, form, count, most)]


def _ranges(rows: int, count: int, most: int) -> list[Rows]:
    """Return ranges of rows of even length, at least `count` if there are as many rows."""
    pieces = min(max(count, -(-rows // most)), rows)
    cuts = [rows * index // pieces for index in range(pieces + 1)] if pieces else [0]
    return [Rows(low, high) for low, high in itertools.pairwise(cuts)]


def _graph_files(branch: Branch) -> list[File]:
    """Return the files that the graph names."""
    if not branch.files:
        raise ArgumentError(
            f"No list of files found: {branch.origin!r} names none, or depends on a placeholder. Pass files=."
        )
    try:
        return listing(branch.files, argument="files")
    except DataError as error:
        raise DataError(
            f"The graph reads files that do not exist here ({error}). They are named at {branch.origin!r}. Pass files= "
            "to read others."
        ) from error
