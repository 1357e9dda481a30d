"""Runs a plan in a worker: records pass the parts of the graph one batch at a time, and become one shard."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph.pipelines.dataset_units import Elements, narrowed
from orca.backends.graph.pipelines.freezing import Part
from orca.backends.graph.pipelines.plan import Branch, DatasetSource, Plan, ReaderSource, Rows, Step, Unit
from orca.backends.graph.pipelines.records import Piece
from orca.backends.graph.program import Array
from orca.core.machine import granted_threads
from orca.errors import DataError

Element = tuple[Any, ...]
"""The tensors that travel together from one part of the graph to the next."""


@dataclass(frozen=True)
class Compute:
    """Computes the results for one unit; the engine ships it to the workers."""

    plan: Plan

    def __call__(self, unit: Unit) -> dict[str, Array]:
        return _runners.get(self.plan).run(*unit)


class _Runners:
    """The sessions that a process keeps between units."""

    def __init__(self) -> None:
        self._runner: Runner | None = None
        self._lock = threading.Lock()

    def get(self, plan: Plan) -> Runner:
        """Return the sessions of a plan, in place of those of another one."""
        with self._lock:
            if self._runner is None or self._runner.plan.key != plan.key:
                if self._runner is not None:
                    self._runner.close()
                self._runner = Runner(plan)
            return self._runner


_runners = _Runners()


class PartSession:
    """A part of a graph in a session."""

    def __init__(self, part: Part, threads: int) -> None:
        graph = v1.Graph()
        with graph.as_default():
            v1.import_graph_def(v1.GraphDef.FromString(part.graph), name="")
        config = v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads, allow_soft_placement=True
        )
        self._session = v1.Session(graph=graph, config=config)
        for table in part.tables:
            self._session.run(graph.get_operation_by_name(table))
        self.fetches = [graph.get_tensor_by_name(name) for name in part.fetches]
        self._call = self._session.make_callable(self.fetches, [graph.get_tensor_by_name(name) for name in part.feeds])

    def run(self, element: Element) -> list[Any]:
        """Return the results for what is fed."""
        return list(self._call(*element))

    def close(self) -> None:
        self._session.close()


class Runner:
    """A plan with its sessions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._threads = plan.threads or granted_threads()
        self._network = PartSession(plan.network, self._threads)
        self._sessions: dict[int, PartSession] = {}
        self._elements: dict[tuple[int, ...], Elements] = {}

    def close(self) -> None:
        for session in (self._network, *self._sessions.values()):
            session.close()
        for elements in self._elements.values():
            elements.close()

    def run(self, number: int, part: Sequence[Piece] | Rows) -> dict[str, Array]:
        """Return the results for the records of a unit."""
        branch = self.plan.branches[number]
        batches = [self._outputs(branch, element) for element in self._arriving(branch, part)]
        if not batches:
            return self._nothing(branch, part)
        return self._joined(batches)

    # From the source to the network

    def _arriving(self, branch: Branch, part: Sequence[Piece] | Rows) -> Iterator[Element]:
        stream = self._source(branch, part)
        for step in branch.steps:
            stream = self._through(step, stream)
        return stream

    def _source(self, branch: Branch, part: Sequence[Piece] | Rows) -> Iterator[Element]:
        source = branch.source
        if isinstance(source, DatasetSource):
            yield from self._dataset(source, part)
        elif isinstance(source, ReaderSource):
            assert not isinstance(part, Rows), "a reader has files"
            records = (record for piece in part for record in source.form.records(piece))
            picked = (tuple(record[number] for number in source.picks) for record in records)
            yield from _grouped(picked, source.at_once) if source.at_once else picked
        elif isinstance(part, Rows):
            for row in range(part.low, part.high):
                yield tuple(column[row] for column in source.columns)
        else:
            yield from ((piece.path.encode(),) for piece in part)

    def _dataset(self, source: DatasetSource, part: Sequence[Piece] | Rows) -> Iterator[Element]:
        if source.dtypes not in self._elements:
            self._elements[source.dtypes] = Elements(source.dtypes, self._threads)
        elements = self._elements[source.dtypes]
        with ExitStack() as stack:
            if not isinstance(part, Rows):
                part = [stack.enter_context(piece.here()) for piece in part]
            try:
                for graph in narrowed(source, part):
                    for element in elements.of(graph):
                        yield tuple(element[number] for number in source.picks)
            except v1.errors.OpError as error:
                where = "" if isinstance(part, Rows) else f" of {', '.join(piece.label for piece in part)}"
                raise DataError(f"The records{where} cannot be read: {_first_line(error)}") from error

    def _through(self, step: Step, stream: Iterator[Element]) -> Iterator[Element]:
        """Yield what leaves a queue."""
        computed = (self._computed(step.part, element) for element in stream)
        if step.splits:
            computed = (row for element in computed for row in zip(*element, strict=True))
        return _grouped(computed, step.rows) if step.rows else computed

    def _computed(self, part: Part, element: Element) -> Element:
        passes = part.passes
        if passes is not None:
            return tuple(element[number] for number in passes)
        key = id(part)
        if key not in self._sessions:
            self._sessions[key] = PartSession(part, self._threads)
        try:
            return tuple(self._sessions[key].run(element))
        except v1.errors.OpError as error:
            raise DataError(f"A record cannot be processed: {_first_line(error)}") from error

    # The network

    def _outputs(self, branch: Branch, element: Element) -> list[Array]:
        """Return the results for a batch, or for one record as a batch of one."""
        if not branch.batched:
            return [np.asarray(output)[None] for output in self._run_network(element)]
        rows = len(element[0])
        fixed = self.plan.fixed_rows
        if fixed is not None and rows < fixed:
            element = tuple(np.concatenate([part, np.repeat(part[-1:], fixed - rows, axis=0)]) for part in element)
        outputs = [np.asarray(output) for output in self._run_network(element)]
        for name, output in zip(self.plan.names, outputs, strict=True):
            if not output.ndim or len(output) != len(element[0]):
                raise DataError(
                    f"The node {name!r} has the shape {output.shape} for a batch of {len(element[0])} rows; its first "
                    "axis must be the rows."
                )
        return [output[:rows] for output in outputs]

    def _run_network(self, element: Element) -> list[Any]:
        try:
            return self._network.run(element)
        except v1.errors.OpError as error:
            raise DataError(f"The graph cannot compute a batch: {_first_line(error)}") from error

    def _joined(self, batches: Sequence[Sequence[Array]]) -> dict[str, Array]:
        columns = {}
        for number, name in enumerate(self.plan.names):
            parts = [batch[number] for batch in batches]
            shapes = {part.shape[1:] for part in parts}
            if len(shapes) > 1:
                raise DataError(
                    f"The node {name!r} has rows of different shapes: {', '.join(map(str, sorted(shapes)))}. Choose a "
                    "node behind one that resizes or pads them."
                )
            columns[name] = np.concatenate(parts)
        return columns

    def _nothing(self, branch: Branch, part: Sequence[Piece] | Rows) -> dict[str, Array]:
        """Return no rows, of the shape that the first record of the file has, if it has one."""
        if not isinstance(part, Rows) and any(not piece.is_whole for piece in part):
            whole = [Piece(piece.path, piece.label, storage=piece.storage) for piece in part]
            for element in self._arriving(branch, whole):
                outputs = self._outputs(branch, element)
                return {name: output[:0] for name, output in zip(self.plan.names, outputs, strict=True)}
        empty = zip(self.plan.names, self.plan.empty, strict=True)
        return {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in empty}


def _grouped(elements: Iterator[Element], rows: int) -> Iterator[Element]:
    """Yield batches of elements, the last one as short as it is."""
    batch: list[Element] = []
    for element in elements:
        batch.append(element)
        if len(batch) == rows:
            yield _stacked(batch)
            batch = []
    if batch:
        yield _stacked(batch)


def _stacked(batch: Sequence[Element]) -> Element:
    return tuple(_column(parts) for parts in zip(*batch, strict=True))


def _column(parts: Sequence[Any]) -> Array:
    if isinstance(parts[0], bytes):
        return np.array(parts, object)  # an array of bytes would drop zeros at the end
    try:
        return np.stack(parts)
    except ValueError:
        shapes = sorted({np.shape(part) for part in parts})
        raise DataError(
            f"Records of different shapes, {', '.join(map(str, shapes[:3]))}, cannot be one batch. Resize or pad them "
            "before the queue."
        ) from None


def _first_line(error: Any) -> str:
    return str(error.message).strip().partition("\n")[0][:300]
