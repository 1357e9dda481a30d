"""An adapter for Orca: rows as a list of dicts, which become columns once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from orca.shards.adapters.base import Adapter, Feedable, Form, Place, Prediction
from orca.shards.adapters.frames import FrameAdapter

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine
    from orca.shards.tree import Tree


@dataclass(frozen=True)
class Records:
    """Rows, each with its values by name."""

    rows: list[dict[str, Any]]


class RecordsAdapter(Adapter):
    """Reads records as the frame of their columns."""

    def __init__(self, data: Records) -> None:
        super().__init__(data)
        self._frame = FrameAdapter(pd.DataFrame(data.rows))

    @staticmethod
    def accepts(data: object) -> bool:
        return isinstance(data, Records)

    def columns(self) -> list[str]:
        return self._frame.columns()

    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        return self._frame.shards(form, engine, parts)

    def head(self, count: int, form: Form, place: Place) -> Tree:
        return self._frame.head(count, form, place)

    def predict(self, call: Prediction) -> Records:
        return Records(self._frame.predict(call).to_dict("records"))
