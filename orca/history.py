"""The History that `fit` returns: one record per epoch."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any, overload

_HIDDEN = ("rows",)


class History(Sequence[dict[str, Any]]):
    """A list of epoch records that can also be indexed by column name.

    >>> history = History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])
    >>> history["loss"]
    [0.5, 0.25]
    >>> history[-1]["epoch"]
    2

    Args:
        records: One dict per epoch.
        stopped: Why the run ended early.
        params: The settings of the run.
        changes: The changes of the number of workers, one line each.
    """

    def __init__(
        self,
        records: Sequence[dict[str, Any]] = (),
        stopped: str | None = None,
        params: dict[str, Any] | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        self._records = list(records)
        self.stopped = stopped
        """Why the run ended before its last epoch, or None."""
        self.params = dict(params or {})
        """The settings of the run: epochs, steps per epoch, batch_size."""
        self.changes = list(changes)
        """The changes of the number of workers during the run (`min_workers`), one line each."""

    @property
    def history(self) -> dict[str, list[Any]]:
        """The values by name, as in Keras."""
        return {name: self[name] for name in self.columns}

    @property
    def epoch(self) -> list[int]:
        """The epochs, counted from 0, as in Keras."""
        return [record["epoch"] - 1 for record in self._records]

    @property
    def columns(self) -> list[str]:
        """The names of all values, in order of first appearance."""
        return list(dict.fromkeys(name for record in self._records for name in record))

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            if key not in self.columns:
                from orca.errors import ColumnError, suggest

                names = ", ".join(self.columns)
                raise ColumnError(f"The history has no {key!r}. It has: {names}." + suggest(key, self.columns))
            return [record.get(key) for record in self._records]
        return History(self._records[key]) if isinstance(key, slice) else self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and other._records == self._records

    __hash__ = None  # type: ignore[assignment]

    def to_pandas(self) -> Any:
        """Return the records as a pandas DataFrame, one row per epoch."""
        import pandas

        return pandas.DataFrame(self._records, columns=self.columns)

    def plot(self, path: str | None = None) -> Any:
        """Plot loss and metrics over the epochs, for training and validation.

        Args:
            path: Image file to write.

        Returns:
            The matplotlib figure.
        """
        from matplotlib.figure import Figure

        curves = [
            name
            for name in self.columns
            if not name.startswith("val_") and name not in ("epoch", "lr", "rows", "seconds", "rows_per_s")
        ]
        figure = Figure(figsize=(4.5 * max(len(curves), 1), 3.2), layout="constrained")
        axes = figure.subplots(1, max(len(curves), 1), squeeze=False)[0]
        for axis, name in zip(axes, curves, strict=False):
            axis.plot(self["epoch"], self[name], marker=".", label="train")
            if f"val_{name}" in self.columns:
                axis.plot(self["epoch"], self[f"val_{name}"], marker=".", label="validation")
            axis.set(title=name, xlabel="epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend()
            axis.grid(alpha=0.3)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = [name for name in self.columns if name not in _HIDDEN]
        return names, [[_text(record.get(name)) for name in names] for record in self._records]

    def __str__(self) -> str:
        names, rows = self._cells()
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)] if names else []
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [names, *rows]
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"History({self._records!r})"

    def _repr_html_(self) -> str:
        names, rows = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
