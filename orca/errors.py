"""Every error that Orca raises: each message says what was wrong, what was received and what to do."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable, Mapping


class OrcaError(Exception):
    """Base class of all errors raised by Orca."""


class ArgumentError(OrcaError, ValueError):
    """An argument has an invalid value."""


class UnknownArgumentError(ArgumentError, TypeError):
    """A call has an argument that the function does not know."""


class ColumnError(ArgumentError):
    """A named column or key is missing in the data."""


class DataError(OrcaError, ValueError):
    """The data cannot be used as is: shapes, dtypes, lengths or structure do not match."""


class NotPicklableError(OrcaError, TypeError):
    """An object that must be sent to the workers cannot be pickled."""


class MissingPackageError(OrcaError, ImportError):
    """A package that a backend, runtime or logger needs is not installed."""


class ResourceError(OrcaError, RuntimeError):
    """The cluster cannot provide the requested resources."""


class NotFittedError(OrcaError, ValueError, AttributeError):
    """The estimator has not been fitted or loaded yet."""


class NotStoredError(ArgumentError, LookupError):
    """A name, version or alias is not in the store."""


class UntrustedError(OrcaError, PermissionError):
    """Something in a store would run code, and the caller has not said that it is trusted."""


class TransformError(OrcaError, RuntimeError):
    """A function failed on a shard; the message names the shard and the exception."""


class WorkerError(OrcaError, RuntimeError):
    """A rank raised, died or stalled, so all ranks were stopped.

    Args:
        rank: The rank that failed first.
        host: Its host.
        cause: What happened to it.
        remote_traceback: Its traceback.
        log_tail: The last lines of its output.
        failures: The exceptions of all ranks that failed.
        role: Its role if the ranks have several, such as "server 0".
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
        # Exceptions are pickled by their positional arguments only. A user's exception that cannot be pickled is
        # replaced by its text, so that this error always can be.
        failures = {
            rank: error if _is_picklable(error) else RuntimeError(repr(error)) for rank, error in self.failures.items()
        }
        return (
            _rebuild_worker_error,
            (self.rank, self.host, self.cause, self.remote_traceback, self.log_tail, failures, self.role),
        )


def _is_picklable(error: BaseException) -> bool:
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


def listed(names: Iterable[object], most: int = 20) -> str:
    """Return names for a message, not more than some.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = [str(name) for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known word, or an empty string.

    >>> suggest("imgae", ["image", "label"])
    " Did you mean 'image'?"
    >>> suggest("zzz", ["image"])
    ''
    """
    near = difflib.get_close_matches(str(word), [str(k) for k in known], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
