"""A failing step on a shard, told the same way whatever engine ran it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import OrcaError, TransformError, WorkerError

_TOLD = re.compile(r"TransformError: (shard \d+: .*)")


def told(index: int, error: Exception) -> TransformError:
    """What a step raises on its shard; it travels through Ray and Spark as one line of text."""
    text = " ".join(str(error).split())
    return TransformError(f"shard {index}: {type(error).__name__}: {text}")


@contextmanager
def one_error() -> Iterator[None]:
    """Turn what the engine makes of a failed step back into the step's own error."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, TransformError):
            raise error.__cause__ from error
        raise
    except Exception as error:
        # Ray keeps what was raised, in an error that poses as the same class; Spark keeps only its text.
        cause = getattr(error, "cause", None)
        if isinstance(cause, TransformError):
            raise cause from error
        if isinstance(error, OrcaError):
            raise
        found = _TOLD.search(str(error))
        if found is None:
            raise
        raise TransformError(found.group(1).strip()) from error
