"""Data creators: functions ``fn(config, batch_size)`` that return any other kind of data, called on the ranks."""

from __future__ import annotations

import fcntl
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from orca.core.arguments import check_function
from orca.core.settings import settings
from orca.errors import DataError
from orca.shards.adapters.arrays import RowsAdapter
from orca.shards.adapters.base import Adapter, Form, Place
from orca.shards.adapters.batches import BatchesAdapter, send
from orca.shards.adapters.iterables import IterableAdapter, IterableStream
from orca.shards.adapters.selection import describe_data
from orca.shards.adapters.trees import rank_form
from orca.shards.engines.memory import MemoryEngine
from orca.shards.feed import Rows
from orca.shards.on_rank import Reader, SentSource, Source
from orca.shards.randomness import OwnRandomness
from orca.shards.tree import Tree, join_rows, kind_of
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class CreatorAdapter(RowsAdapter):
    """A function that creates the data; every rank calls it, and takes its share of the rows."""

    takes_labels = True
    takes_weights = True
    takes_columns = True

    @staticmethod
    def accepts(data: object) -> bool:
        return callable(data) and kind_of(data) == "object" and getattr(data, "__module__", "") != "builtins"

    def source(self, form: Form) -> CreatorSource:
        return CreatorSource(Creator.of(self.data, form), rank_form(form))

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> SentSource:
        return send(self.source(form), self.data, form, engine)

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return not several_inputs

    def _on_engine(self, form: Form, place: Place) -> XShards:
        # A prediction needs each row once: the creator runs in one task of the engine.
        if self._stored is None:
            engine = place.engine
            self._stored = XShards(engine, engine.put([self.source(form)])).transform_shard(_created_rows)
        return self._stored


class Creator:
    """A data creator with its arguments, and whether only one of a host's processes may call it at a time."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...], argument: str, alone: bool) -> None:
        self._function, self._arguments, self._argument, self._alone = function, arguments, argument, alone

    @classmethod
    def of(cls, function: Any, form: Form) -> Creator:
        """Check the function's parameters."""
        check_function(form.argument, function, "fn(config, batch_size)", (0, 1, 2))
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise DataError(f"{form.argument}= is {function!r}, which is no data and no function.") from None
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        count = sum(parameter.kind in kinds for parameter in signature.parameters.values())
        return cls(function, form.creator_arguments[:count], form.argument, settings.serialize_data_creator)

    def __call__(self) -> Any:
        """Return the data."""
        with _alone_on_this_host() if self._alone else nullcontext():
            data = self._function(*self._arguments)
        if data is None or CreatorAdapter.accepts(data):
            raise DataError(
                f"The data creator given as {self._argument}= returned {describe_data(data)}; expected a "
                "DataLoader, a dataset, arrays or anything else that fit takes."
            )
        return data


class CreatorSource(Source):
    """A data creator on its way to the ranks."""

    def __init__(self, creator: Creator, form: Form) -> None:
        self._creator, self._form = creator, form

    def open(self, reader: Reader) -> Any:
        # The same random numbers on every rank: all of them have to create the same rows.
        with OwnRandomness(reader.seed):
            data = self._creator()
        rows = self._rows(data).open(reader)
        _check_alike(reader, type(data).__name__, len(rows) if hasattr(rows, "__len__") else None)
        return rows

    def _rows(self, data: Any) -> Source:
        adapter, form = self._adapter(data)
        if isinstance(adapter, IterableAdapter) and isinstance(data, Iterator):
            return IterableStream(_Again(self._creator, data), form)
        source = adapter.created(self._creator, form)
        return StoredSource(adapter, form) if source is None else source

    def all_rows(self) -> Tree:
        """Create the data and return all its rows."""
        adapter, form = self._adapter(self._creator())
        engine = MemoryEngine()
        shards = adapter.stored(form, engine) if isinstance(adapter, BatchesAdapter) else adapter.shards(form, engine)
        return join_rows([handle.load() for handle in shards.handles()])

    def _adapter(self, data: Any) -> tuple[Adapter, Form]:
        from orca.shards.adapters.registry import adapt, check_extras

        adapter = adapt(data)
        if isinstance(data, XShards) or type(adapter).__name__ in ("SparkAdapter", "RayAdapter"):
            raise DataError(
                f"The data creator given as {self._form.argument}= returned {describe_data(data)}, which is spread "
                "over processes already, while every worker calls the creator. Pass the data itself."
            )
        check_extras(adapter, self._form)
        return adapter, self._form


class StoredSource(Source):
    """Data that was created on this rank and whose rows are in memory."""

    def __init__(self, adapter: Adapter, form: Form) -> None:
        self._adapter, self._form = adapter, form

    def open(self, reader: Reader) -> Rows:
        return Rows(self._adapter.shards(self._form, MemoryEngine()).handles())


class _Again:
    """Returns an iterator that a creator has returned, and for each further pass a new one."""

    def __init__(self, creator: Creator, first: Iterator[Any]) -> None:
        self._creator, self._first = creator, [first]

    def __call__(self) -> Any:
        return self._first.pop() if self._first else self._creator()


def _created_rows(source: CreatorSource) -> Tree:
    return source.all_rows()


def _check_alike(reader: Reader, kind: str, rows: int | None) -> None:
    """Raise if the creator has returned different data on different ranks."""
    kinds = list(reader.exchange((kind, rows)))
    other = next((rank for rank, found in enumerate(kinds) if found != kinds[0]), None)
    if other is not None:
        shown = [f"a {kind}" + ("" if rows is None else f" with {rows} rows") for kind, rows in kinds]
        raise DataError(
            f"The data creator returned {shown[0]} on rank 0 and {shown[other]} on rank {other}. It has to return all "
            "rows on every worker, which then takes its share; seed what is random in it."
        )


@contextmanager
def _alone_on_this_host() -> Iterator[None]:
    """Wait until no other process of this host is here; the lock of one that dies is released."""
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
