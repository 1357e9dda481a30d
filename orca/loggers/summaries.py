"""Summaries with the names of BigDL: TensorBoard files of training and of validation."""

from __future__ import annotations

from typing import Any

from orca.core.arguments import check_text
from orca.errors import ArgumentError
from orca.loggers.tensorboard import TensorBoard

_NAMES = {"loss": "Loss", "lr": "LearningRate", "rows_per_s": "Throughput"}
TAGS = ("Loss", "Throughput", "LearningRate")


class Summary(TensorBoard):
    """Writes the scalars of one split, with the tags that BigDL has.

    Args:
        log_dir: The log folder, on any fsspec path.
        app_name: Subfolder of this application.
    """

    split = "train"

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        super().__init__(log_dir, check_text("app_name", app_name))

    def read_scalar(self, tag: str) -> list[tuple[int, float, float]]:
        """Return (step, value, wall time) of a scalar, ordered by step.

        Args:
            tag: "Loss", "Throughput", "LearningRate", or the name of a metric.
        """
        return self.summary(self.split, tag)

    def _write(self, split: str, scalars: list[tuple[int, dict[str, float]]]) -> None:
        if split == self.split:
            named = [(step, {_NAMES.get(tag, tag): value for tag, value in values.items()}) for step, values in scalars]
            super()._write(split, named)


class TrainSummary(Summary):
    """Writes loss, throughput and learning rate of each step, to ``log_dir/app_name/train``.

    >>> summary = TrainSummary("memory://logs", "app")
    >>> summary.start({})
    >>> summary.steps(1, {"loss": [0.5, 0.25], "lr": [0.1, 0.1]})
    >>> summary.epoch({"epoch": 1, "step": 2, "loss": 0.375, "rows_per_s": 100.0})
    >>> [value for _, value, _ in summary.read_scalar("Loss")]
    [0.5, 0.25]
    """

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        super().__init__(log_dir, app_name)
        self._steps: list[tuple[int, dict[str, float]]] = []

    def steps(self, first: int, values: dict[str, Any]) -> None:
        names = [name for name in values if name in _NAMES]
        self._steps = [
            (first + place, {name: float(values[name][place]) for name in names})
            for place in range(len(next(iter(values.values()))))
        ]

    def epoch(self, record: dict[str, Any]) -> None:
        # The throughput of a step is that of its epoch: the clock of a rank would include what others wait for.
        speed = {"rows_per_s": float(record["rows_per_s"])} if "rows_per_s" in record else {}
        self._write("train", [(step, values | speed) for step, values in self._steps])
        self._steps = []

    def set_summary_trigger(self, name: str, trigger: Any) -> TrainSummary:
        """Accept when a scalar is written; all of them are written for each step.

        Args:
            name: "Loss", "Throughput" or "LearningRate".
            trigger: A trigger.

        Raises:
            ArgumentError: For "Parameters": histograms of weights are not written.
        """
        if name not in TAGS:
            raise ArgumentError(f"name={name!r}: expected {', '.join(TAGS)}. Histograms of weights are not supported.")
        return self


class ValidationSummary(Summary):
    """Writes the validation metrics, to ``log_dir/app_name/validation``."""

    split = "validation"
