"""The contract of an adapter: one kind of data that users pass to fit, evaluate and predict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from orca.shards.checks import Rules
from orca.shards.column_types import Problems
from orca.shards.columns import Columns
from orca.shards.tree import Tree

if TYPE_CHECKING:
    from orca.shards.engines.base import Engine
    from orca.shards.on_rank import Source


@dataclass(frozen=True)
class Checks:
    """What the model of a call accepts, as far as the driver knows it."""

    other_kinds: str = ""
    """Kinds of numpy dtypes that features may have besides numbers: "U" for text, "c" for complex numbers."""
    labels: Rules = field(default_factory=dict)
    rows: Callable[[Tree], None] | None = None
    """Raises if the model does not accept such rows; it looks at shapes only."""
    types: Callable[[Tree], Mapping[str, str]] | None = None
    """Returns the types that the model converts such rows to, by dotted name; values must be in their range."""


@dataclass(frozen=True)
class Form:
    """How to read data: which columns, whether with labels, and what to call it in messages."""

    argument: str = "data"
    labels: object = None
    """Labels given beside the data, as in ``fit(x, y)``."""
    feature_cols: Columns = None
    label_cols: Columns = None
    need_labels: bool = True
    together: bool = True
    """Whether several columns of single numbers are one matrix or several inputs."""
    creator_arguments: tuple[object, ...] = ()
    """Arguments of a data creator, as far as it takes any."""
    pairs: bool = True
    """Whether a pair of arrays is (features, labels)."""
    weights: object = None
    """The weight of each row: an array beside arrays, or the name of a column."""
    triples: bool = False
    """Whether a tuple of three is (features, labels, weights)."""
    inputs: int | None = None
    """How many inputs the model has, if that is known."""
    flat: tuple[int, int] | None = None
    """Numbers of inputs and labels, if they decide how a flat tuple of arrays is read."""
    most_rows: int | None = None
    """How many rows the call can use at most; a stream that may never end is read no further."""
    checks: Checks = Checks()

    @property
    def weight_col(self) -> str | None:
        """The column of weights, if they are a column."""
        return self.weights if isinstance(self.weights, str) else None


class Feedable(Protocol):
    """Rows that ranks can be fed with."""

    def handles(self) -> Any:
        """Return the engine's references to the shards."""

    def release(self) -> None:
        """Free what was stored for one call; leave the user's own shards alone."""


class ShardStep(Protocol):
    """What `predict` does with the rows of one shard; it is pickled to wherever the shards are stored."""

    def __call__(self, shard: Tree) -> Tree:
        """Return the shard with the outputs added."""

    def outputs(self, shard: Tree) -> dict[str, Tree]:
        """Return only the outputs, as the entry "output"."""

    def run(self, features: Tree) -> Tree:
        """Return the outputs for rows."""

    def tables(self, tables: Iterator[Any]) -> Iterator[Any]:
        """Return the outputs of one Arrow table after another, as Arrow tables."""


@dataclass(frozen=True)
class Place:
    """Where the rows of a prediction may be computed."""

    engine: Engine
    parts: int = 1
    """Number of tasks that the rows of this process are split into; each loads the model once."""
    in_process: bool = False
    """Whether the rows of this process may stay in it, with the model beside them."""
    cores: int = 1
    """Cores of this process, for predictions inside of it."""


@dataclass(frozen=True)
class Prediction:
    """One call of `predict`: the step, and where and how to read the rows."""

    step: ShardStep
    form: Form
    place: Place
    example: Callable[[], Any]
    """Returns an Arrow table such as `step.tables` yields, or None if only computing a row can tell."""


class Adapter(ABC):
    """One kind of data. An adapter object belongs to one call and holds the user's object as `data`.

    Register a class as an entry point `orca.adapters`. `accepts` must recognize the data by class names, so that
    nothing heavy is imported for data of another kind.
    """

    takes_labels: ClassVar[bool] = False
    """Whether labels may be given beside the data."""
    takes_weights: ClassVar[bool] = False
    """Whether an array of weights may be given beside the data."""
    takes_columns: ClassVar[bool] = True
    """Whether `feature_cols`, `label_cols` and `output_cols` have a meaning for such data."""
    holds_rows: ClassVar[bool] = False
    """Whether the rows are in this process, so that a look at the first ones costs nothing."""
    named_entries: ClassVar[bool] = False
    """Whether rows without columns may have entries by name, which `feature_cols` can choose."""
    batch_size: int | None = None
    """The batch size that the data brings along, if any."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @staticmethod
    @abstractmethod
    def accepts(data: object) -> bool:
        """Whether this adapter is for such data."""

    @abstractmethod
    def shards(self, form: Form, engine: Engine, parts: int = 1) -> Feedable:
        """Return the rows as shards {"x", "y"} on `engine`, checked without reading all rows."""

    def source(self, form: Form) -> Source | None:
        """Return the data as a source that ranks read by themselves; None if its rows are stored as shards."""
        return None

    def created(self, creator: Callable[[], Any], form: Form) -> Source | None:
        """Return data that `creator` has returned on this rank as a source; it may be called again for each pass."""
        return self.source(form)

    @abstractmethod
    def head(self, count: int, form: Form, place: Place) -> Tree:
        """Return the features of the first rows, in this process."""

    @abstractmethod
    def predict(self, call: Prediction) -> Any:
        """Return the outputs in the kind of the data."""

    def columns(self) -> list[str] | None:
        """Return the names of the columns; None if the rows have none."""
        return None

    def problems(self, names: Iterable[str]) -> Problems:
        """Return those of some columns that are not numbers, as far as types tell; nothing is computed for it."""
        return {}

    def pairs_are_labelled(self, several_inputs: bool) -> bool:
        """Whether `predict` should take a pair in the data for features and labels."""
        return False

    def all_features(self, form: Form, place: Place) -> Tree | None:
        """Return the features of all rows, if they are in this process at no cost."""
        return None

    def threads(self, place: Place) -> int | None:
        """Return how many threads a model may use for these rows; None for as many as its process was given."""
        return place.engine.task_threads
