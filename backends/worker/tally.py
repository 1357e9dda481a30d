"""Exact sums of loss and metrics, per rank and merged across ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orca.backends.base import Outcome, OwnMetrics

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.metrics import Metric


class Tally:
    """Exact sums of loss and metrics over the rows that one rank has seen; tallies of ranks can be merged."""

    def __init__(self, metrics: Sequence[Metric], own: OwnMetrics | None = None) -> None:
        self.metrics = metrics
        self.own = own
        self.own_sums: list[Any] | None = None
        """The sums of several ranks' own metrics, in a tally that joins them."""
        self._kept: list[Any] | None = None
        """This rank's own sums, once its metrics have been given those of all ranks."""
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

    def merged(self, context: RankContext, prefix: str = "") -> dict[str, float]:
        """The result over all ranks, the same on each of them."""
        told = self.told()
        self._kept = told["own"]
        total = Tally.joined(self.metrics, context.allgather(told))
        count = total.loss_count
        result = {f"{prefix}loss": total.loss_sum / count} if count else {}
        result |= {f"{prefix}{name}": value / max(total.rows, 1) for name, value in total.extra.items()}
        for metric, state in zip(self.metrics, total.states, strict=True):
            result[f"{prefix}{metric.name}"] = float(metric.compute(state))
        if self.own is not None and total.own_sums is not None:
            # A rank that has seen no row may not know its metrics yet.
            results = max(context.allgather(self.own.results(total.own_sums)), key=len)
            result |= {f"{prefix}{name}": value for name, value in results.items()}
        return result

    def told(self) -> dict[str, Any]:
        """The sums as plain values, for other ranks and for checkpoints."""
        own = self.own.sums() if self._kept is None and self.own is not None else self._kept
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "rows": self.rows,
            "states": self.states,
            "extra": self.extra,
            "own": own,
        }

    @classmethod
    def joined(cls, metrics: Sequence[Metric], told: Sequence[dict[str, Any]]) -> Tally:
        """The sums of several ranks as one."""
        total = cls(metrics)
        total.loss_sum = sum(part["loss_sum"] for part in told)
        total.loss_count = sum(part["loss_count"] for part in told)
        total.rows = sum(part["rows"] for part in told)
        for part in told:
            for name, value in part["extra"].items():
                total.extra[name] = total.extra.get(name, 0.0) + value
        for index, metric in enumerate(metrics):
            total.states[index] = metric.merge([part["states"][index] for part in told])
        owned = [part["own"] for part in told if part.get("own") is not None]
        if owned:
            # Metrics are made with the first row: a rank with fewer of them has seen none.
            most = max(map(len, owned))
            total.own_sums = [sum(values) for values in zip(*(o for o in owned if len(o) == most), strict=True)]
        return total
