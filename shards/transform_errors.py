"""Errors of steps on shards, reported the same way by every engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import OrcaError, ResourceError, TransformError, WorkerError

_MESSAGE = re.compile(r"TransformError: (shard \d+: .*)")


def step_error(index: int, error: Exception) -> TransformError:
    """Wrap what a step raised on its shard into one line of text, which survives Ray and Spark."""
    text = " ".join(str(error).split())
    return TransformError(f"shard {index}: {type(error).__name__}: {text}")


@contextmanager
def one_error() -> Iterator[None]:
    """Re-raise the step's own error in place of the engine's."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, TransformError):
            raise error.__cause__ from error
        raise
    except Exception as error:
        # Ray keeps the original error, inside one that poses as the same class; Spark keeps only its text.
        cause = getattr(error, "cause", None)
        if isinstance(cause, TransformError):
            raise cause from error
        if isinstance(error, OrcaError):
            raise
        match = _MESSAGE.search(str(error))
        if match is None and type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "ray"):
            text = " ".join(str(error).split())
            raise ResourceError(f"A worker was lost while it worked on shards: {text[:300]}") from error
        if match is None:
            raise
        raise TransformError(match.group(1).strip()) from error
