"""The metrics of ``tf.metrics`` in a graph, as sums that can be reduced over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orca.backends.base import OwnMetrics
from orca.backends.graph.runner import Runner


class StreamMetrics(OwnMetrics):
    """Pairs (value, update operation), whose sums are local variables."""

    def __init__(self, runner: Callable[[], Runner]) -> None:
        self._runner = runner

    def reset(self) -> None:
        runner = self._runner()
        names = set(runner.program.stream_sums)
        runner.session.run([variable.initializer for variable in runner.local if variable.name in names])

    def sums(self) -> list[Any]:
        runner = self._runner()
        values = runner.values(runner.local)
        return [values[name] for name in runner.program.stream_sums]

    def load(self, sums: list[Any]) -> None:
        runner = self._runner()
        runner.assign(dict(zip(runner.program.stream_sums, sums, strict=True)))

    def results(self, sums: list[Any]) -> dict[str, float]:
        self.load(sums)
        runner = self._runner()
        streams = runner.program.streams
        values = runner.session.run([stream.value for stream in streams])
        return {stream.name: float(np.mean(value)) for stream, value in zip(streams, values, strict=True)}
