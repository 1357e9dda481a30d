"""Exact sums of loss and metrics, per rank and merged across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orca.backends.base import Outcome, OwnMetrics
from orca.errors import DataError

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


class Tally:
    """Exact sums of loss and metrics over one rank's rows; tallies of ranks can be merged."""

    def __init__(self, metrics: Sequence[Metric], own: OwnMetrics | None = None) -> None:
        self.metrics = metrics
        self.own = own
        self.own_sums: list[Any] | None = None
        """The model's own metrics summed over several ranks, in a joined tally."""
        self._local_sums: list[Any] | None = None
        """This rank's own sums, once its metrics hold those of all ranks."""
        self.loss_sum = 0.0
        self.loss_count = 0.0
        self.rows = 0
        self.states: list[Any] = [metric.empty() for metric in metrics]
        self.extra: dict[str, float] = {}

    def add(self, outcome: Outcome, rows: int) -> None:
        self.loss_sum += outcome.loss_sum
        self.loss_count += outcome.loss_count
        self.rows += rows
        for name, value in outcome.extra.items():
            self.extra[name] = self.extra.get(name, 0.0) + value
        if self.metrics and rows and outcome.output is not None:
            self.states = [
                metric.update(state, outcome.target, outcome.output)
                for metric, state in zip(self.metrics, self.states, strict=True)
            ]

    def merged(self, context: RankContext, prefix: str = "", required: bool = False) -> dict[str, float]:
        """Return the result over all ranks, the same on each of them; if rows are `required`, raise without any."""
        sums = self.sums()
        self._local_sums = sums["own"]
        total = Tally.joined(self.metrics, context.allgather(sums))
        if required and not total.rows:
            raise DataError(f"There is no row to {'validate on' if prefix else 'evaluate'}: the data has none.")
        count = total.loss_count
        result = {f"{prefix}loss": total.loss_sum / count} if count else {}
        result |= {f"{prefix}{name}": value / max(total.rows, 1) for name, value in total.extra.items()}
        for metric, state in zip(self.metrics, total.states, strict=True):
            result[f"{prefix}{metric.name}"] = float(metric.compute(state))
        if self.own is not None and total.own_sums is not None:
            # A rank without rows may not have created its metrics yet.
            results = max(context.allgather(self.own.results(total.own_sums)), key=len)
            result |= {f"{prefix}{name}": value for name, value in results.items()}
        return result

    def sums(self) -> dict[str, Any]:
        """Return the sums as plain values, for other ranks and for checkpoints."""
        own = self.own.sums() if self._local_sums is None and self.own is not None else self._local_sums
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "rows": self.rows,
            "states": self.states,
            "extra": self.extra,
            "own": own,
        }

    @classmethod
    def joined(cls, metrics: Sequence[Metric], parts: Sequence[dict[str, Any]]) -> Tally:
        """Add the sums of several ranks."""
        total = cls(metrics)
        total.loss_sum = sum(part["loss_sum"] for part in parts)
        total.loss_count = sum(part["loss_count"] for part in parts)
        total.rows = sum(part["rows"] for part in parts)
        for part in parts:
            for name, value in part["extra"].items():
                total.extra[name] = total.extra.get(name, 0.0) + value
        for index, metric in enumerate(metrics):
            total.states[index] = metric.merge([part["states"][index] for part in parts])
        owned = [part["own"] for part in parts if part.get("own") is not None]
        if owned:
            # Metrics are created with the first row: a rank with fewer of them had none.
            most = max(map(len, owned))
            total.own_sums = [sum(values) for values in zip(*(o for o in owned if len(o) == most), strict=True)]
        return total
