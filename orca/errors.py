"""Every error a user of Orca can meet: a sentence that says what was wrong, what was received and what to do."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable, Mapping


class OrcaError(Exception):
    """The base of all errors raised by Orca."""


class ArgumentError(OrcaError, ValueError):
    """An argument has a value that cannot work."""


class ColumnError(ArgumentError):
    """A column or key was named that the data does not have."""


class DataError(OrcaError, ValueError):
    """The data cannot be used as it is: shapes, dtypes, lengths or structure do not fit."""


class NotPicklableError(OrcaError, TypeError):
    """Something that has to travel to the workers cannot be pickled."""


class MissingPackageError(OrcaError, ImportError):
    """A package that this backend or runtime needs is not installed."""


class ResourceError(OrcaError, RuntimeError):
    """The cluster cannot give what was asked for."""


class NotFittedError(OrcaError, ValueError, AttributeError):
    """The estimator has nothing to give yet because it was never fitted or loaded."""


class TransformError(OrcaError, RuntimeError):
    """A function failed on a shard; the message names the shard and what was raised."""


class WorkerError(OrcaError, RuntimeError):
    """A rank raised, died or stalled, and the whole gang was ended because of it.

    ``rank``, ``host`` and ``cause`` describe the rank that failed first; ``failures`` maps every rank
    that failed to its exception; ``remote_traceback`` and ``log_tail`` are that rank's own words.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        cause: str,
        *,
        remote_traceback: str = "",
        log_tail: Iterable[str] = (),
        failures: Mapping[int, BaseException] | None = None,
        role: str = "",
    ) -> None:
        self.rank = rank
        self.role = role
        self.host = host
        self.cause = cause
        self.remote_traceback = remote_traceback
        self.log_tail = tuple(log_tail)
        self.failures = dict(failures or {})
        super().__init__(self._text())

    def _text(self) -> str:
        name = f"{self.role} (rank {self.rank})" if self.role else f"rank {self.rank}"
        parts = [f"{name} on {self.host} {self.cause}"]
        others = sorted(set(self.failures) - {self.rank})
        if others:
            parts.append(f"ranks {', '.join(map(str, others))} failed after it.")
        if self.remote_traceback:
            parts.append(f"Traceback of rank {self.rank}:\n{self.remote_traceback.rstrip()}")
        if self.log_tail:
            parts.append(f"Last output of rank {self.rank}:\n" + "\n".join(f"  {line}" for line in self.log_tail))
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by their positional args; keyword fields have to be carried by hand. A user's own
        # exception that cannot be pickled goes as its text, so that this error always can.
        failures = {
            rank: error if _travels(error) else RuntimeError(repr(error)) for rank, error in self.failures.items()
        }
        return (
            _rebuild_worker_error,
            (self.rank, self.host, self.cause, self.remote_traceback, self.log_tail, failures, self.role),
        )


def _travels(error: BaseException) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _rebuild_worker_error(
    rank: int,
    host: str,
    cause: str,
    remote_traceback: str,
    log_tail: tuple[str, ...],
    failures: dict[int, BaseException],
    role: str,
) -> WorkerError:
    return WorkerError(
        rank, host, cause, remote_traceback=remote_traceback, log_tail=log_tail, failures=failures, role=role
    )


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or nothing.

    >>> suggest("imgae", ["image", "label"])
    " Did you mean 'image'?"
    >>> suggest("zzz", ["image"])
    ''
    """
    near = difflib.get_close_matches(str(word), [str(k) for k in known], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
