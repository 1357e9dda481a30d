"""The contract of a logger."""

from __future__ import annotations

from typing import Any


class Logger:
    """Runs on the driver, once for all ranks: writes what the run reports wherever the driver can write."""

    def start(self, about: dict[str, Any]) -> None:
        """Called when the run begins.

        Args:
            about: Holds backend, framework, workers, batch_size, epochs, seed and config.
        """

    def steps(self, first: int, values: dict[str, Any]) -> None:
        """Called after each epoch with the values of its steps, exact over all ranks.

        Args:
            first: Number of the first step, counted from 1 over all fits.
            values: One array over the steps per name: {"loss": array, "lr": array}.
        """

    def scores(self, step: int, values: dict[str, Any]) -> None:
        """Called after a validation within an epoch.

        Args:
            step: Number of the step after which it ran.
            values: Its results, named as in an epoch's record: {"val_loss": …}.
        """

    def epoch(self, record: dict[str, Any]) -> None:
        """Called when an epoch has ended.

        Args:
            record: The epoch's record in the History, with the number of its last step as "step".
        """

    def end(self, error: BaseException | None) -> None:
        """Called when the run has ended.

        Args:
            error: What the run raised, or None.
        """
