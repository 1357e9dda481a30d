"""What went wrong on a rank, and which of several ranks is to blame."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONNECTION_WORDS = (
    *("connection closed", "connection reset", "gloo", "broken pipe", "timed out", "peer"),
    "has been shut down",  # Horovod, on ranks that outlive another
)


@dataclass(frozen=True)
class Failure:
    """The failure of one rank; one that raised has a traceback."""

    rank: int
    host: str
    cause: str
    traceback: str
    error: BaseException

    @property
    def echo(self) -> bool:
        """Whether this looks like a rank that noticed another's death rather than one that failed by itself."""
        text = f"{self.cause} {self.error}".lower()
        return bool(self.traceback) and any(word in text for word in _CONNECTION_WORDS)

    @property
    def priority(self) -> tuple[bool, int]:
        """How likely this is the cause and not a consequence, the smallest first.

        A death makes other ranks raise or abort in native code; a rank that raises lives on, so nobody dies of it.
        """
        return self.echo, 1 if self.traceback else 2 if "SIGABRT" in self.cause else 0


def raised(rank: int, host: str, report: Mapping[str, Any]) -> Failure:
    """Return the failure of a rank that raised, from its report."""
    error: BaseException
    try:
        error = pickle.loads(report["error"])
    except Exception:
        error = RuntimeError(f"{report['type']}: {report['message']}")
    return Failure(rank, host, f"raised {report['type']}: {report['message']}", report["traceback"], error)
