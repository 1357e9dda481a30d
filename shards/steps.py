"""Steps on one shard that XShards is built from: a user's function, a chain, one entry, checked columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orca.core.pickling import Wrapper
from orca.errors import DataError, TransformError
from orca.shards import frames
from orca.shards.engines.base import Shard, Step
from orca.shards.transform_errors import step_error
from orca.shards.tree import kind_of


class UserStep(Wrapper):
    """A user's function, with its extra arguments, as a step."""

    def __init__(self, fn: Callable[..., Shard], args: tuple[Any, ...] = ()) -> None:
        self._fn, self._args = fn, args

    def __call__(self, index: int, shard: Shard) -> Shard:
        return self._fn(shard, *self._args)

    def wrapped(self) -> Iterable[object]:
        return self._fn, *self._args


class Chain(Wrapper):
    """Several steps in one pass over the shard."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps

    def __call__(self, index: int, shard: Shard) -> Shard:
        for step in self._steps:
            shard = Guarded(step)(index, shard)
        return shard

    def wrapped(self) -> Iterable[object]:
        return self._steps


class StartingAt(Wrapper):
    """A step for the shards from index `first` on; it has already run on those before."""

    def __init__(self, first: int, step: Step) -> None:
        self.first, self.step = first, step

    def __call__(self, index: int, shard: Shard) -> Shard:
        return self.step(index, shard) if index >= self.first else shard

    def wrapped(self) -> Iterable[object]:
        return (self.step,)


class Guarded(Wrapper):
    """A function of a shard's index and data that raises every error as a `TransformError`."""

    def __init__(self, fn: Callable[[int, Any], Any]) -> None:
        self._fn = fn

    def __call__(self, index: int, data: Any) -> Any:
        try:
            return self._fn(index, data)
        except TransformError:
            raise
        except Exception as error:
            raise step_error(index, error) from error

    def wrapped(self) -> Iterable[object]:
        return (self._fn,)


class Item:
    """Selects one entry of a shard."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def __call__(self, shard: Shard) -> Shard:
        if kind_of(shard) == "frame":
            return checked(shard, frames.names(self._key), "[]")[self._key]
        try:
            return shard[self._key]
        except (KeyError, IndexError, TypeError) as error:
            entries = sorted(map(str, shard)) if isinstance(shard, dict) else f"{type(shard).__name__}"
            raise DataError(f"The shards have no entry {self._key!r}. They have: {entries}.") from error


def checked(shard: Shard, columns: Sequence[str], caller: str) -> frames.Frame:
    """Return the shard if it is a DataFrame with these columns, else raise."""
    frame = frames.frame_of(shard, caller)
    frames.check_columns(frame, columns, caller)
    return frame


def column_names(shard: Shard) -> list[str]:
    """Return the columns of a DataFrame."""
    return [str(name) for name in frames.frame_of(shard, "This").columns]
