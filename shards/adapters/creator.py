"""Data creators: functions ``fn(config, batch_size)`` that return any other kind of data."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from orca.core.arguments import check_function
from orca.errors import DataError
from orca.shards.adapters.arrays import RowsAdapter
from orca.shards.adapters.base import Adapter, Feedable, Form, Place
from orca.shards.adapters.selection import describe_data
from orca.shards.adapters.shards import Borrowed
from orca.shards.tree import kind_of
from orca.shards.xshards import XShards

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine


class CreatorAdapter(RowsAdapter):
    """A function that creates the data; it is called once, on the driver, and all ranks share the rows."""

    takes_labels = True
    takes_weights = True
    takes_columns = True

    _created: Adapter | None = None

    @staticmethod
    def accepts(data: object) -> bool:
        return callable(data) and kind_of(data) == "object" and getattr(data, "__module__", "") != "builtins"

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        from orca.shards.adapters.registry import check_extras

        adapter = self._call(form)
        check_extras(adapter, form)
        return adapter.shards(form, engine, parts)

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        return not several_inputs

    def _on_engine(self, form: Form, place: Place) -> XShards:
        if self._stored is None:
            shards = self.shards(form, place.engine, place.parts)
            self._stored = shards.shards if isinstance(shards, Borrowed) else shards  # type: ignore[assignment]
        assert self._stored is not None
        return self._stored

    def _call(self, form: Form) -> Adapter:
        from orca.shards.adapters.registry import adapt

        if self._created is None:
            check_function(form.argument, self.data, "fn(config, batch_size)", (0, 1, 2))
            try:
                signature = inspect.signature(self.data)
            except (TypeError, ValueError):
                raise DataError(f"{form.argument}= is {self.data!r}, which is no data and no function.") from None
            positional = [
                parameter
                for parameter in signature.parameters.values()
                if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            data = self.data(*form.creator_arguments[: len(positional)])
            if data is None or CreatorAdapter.accepts(data):
                raise DataError(
                    f"The data creator given as {form.argument}= returned {describe_data(data)}; expected a "
                    "DataLoader, a dataset, arrays or anything else that fit takes."
                )
            self._created = adapt(data)
        return self._created
