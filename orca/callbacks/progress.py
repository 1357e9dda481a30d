"""The setting that shows or hides the progress bar of one fit."""

from __future__ import annotations

from orca.loggers.base import Logger


class Progress(Logger):
    """Shows or hides the progress bar. Without it, bars appear on terminals and in notebooks.

    Args:
        show: Whether to show a bar per epoch.
    """

    def __init__(self, show: bool = True) -> None:
        self.show = show
