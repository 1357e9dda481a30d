"""What a backend's author says once, and the rows that all checks use."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from orca.context import Context
    from orca.estimator import Estimator
    from orca.shards.xshards import XShards

Array: TypeAlias = np.ndarray[Any, Any]
Weights: TypeAlias = dict[str, Array]
Batches: TypeAlias = Iterable[tuple[Array, Array]]

SEED = 3
FEATURES = 6
NAMES = [f"c{number}" for number in range(FEATURES)]
"""The feature columns of frames."""


@dataclass(frozen=True)
class BackendCase:
    """How to make and look into a small two-class model of one backend.

    The model takes rows of six float32 numbers and returns two scores per row, or one probability.

    Args:
        name: The full name of the backend, such as "torch.horovod".
        make: ``make(workers, **more)`` returns an estimator of plain SGD or momentum, without anything that depends
            on how rows are grouped (no dropout, no batch norm). ``more`` holds arguments of ``from_*``: ``seed``,
            ``metrics``, ``model_dir``.
        weights: ``weights(est)`` returns the learned weights by name.
        reference: ``reference(batches, seed)`` trains the same model in this process, without Orca, on an iterable
            of (x, y) batches, and returns its weights. Without it one worker serves as the reference.
        outputs: ``outputs(est, x)`` computes the model's outputs in this process. Without it `predict` of all rows.
        scores: ``scores(est, x, y)`` computes the loss, and any metrics that the model keeps itself, in this process.
        noisy: Like ``make``, with dropout or an optimizer with state: what an exact resume has to restore.
        several: Like ``make``, with the inputs "left" (two numbers) and "right" (four) and two or more outputs.
        variant: Options of the backend, where a backend has several cases.
        labels: The dtype of the labels.
        metrics: Metrics of `orca.metrics` to compute beside those the model keeps itself.
        workers: The numbers of workers to compare.
        rtol, atol: How far weights may be from the reference.
        inference_only: Whether models only predict.
        lockstep: Whether all workers do the same steps together; asynchronous ones do not.
        exact_resume: Whether a resumed run has to end bit for bit like one that was not interrupted.
        processes: Whether each worker is a process.
        servers: Whether there are ranks that serve the workers.
        sample_weights: Whether rows can be weighted.
    """

    name: str
    make: Callable[..., Estimator]
    weights: Callable[[Estimator], Weights] | None = None
    reference: Callable[[Batches, int], Weights] | None = None
    outputs: Callable[[Estimator, Array], Array] | None = None
    scores: Callable[[Estimator, Array, Array], dict[str, float]] | None = None
    noisy: Callable[..., Estimator] | None = None
    several: Callable[..., Estimator] | None = None
    variant: str = ""
    labels: str = "int64"
    metrics: tuple[str, ...] = ("accuracy", "auc", "f1")
    workers: tuple[int, ...] = (1, 2, 3)
    rtol: float = 1e-5
    atol: float = 1e-6
    inference_only: bool = False
    lockstep: bool = True
    exact_resume: bool = True
    processes: bool = True
    servers: bool = False
    sample_weights: bool = True

    @property
    def title(self) -> str:
        """The name in reports."""
        return f"{self.name} {self.variant}".rstrip()

    @property
    def trains(self) -> bool:
        return not self.inference_only

    @property
    def asynchronous(self) -> bool:
        return not self.lockstep

    @property
    def fixed_size(self) -> bool:
        """Whether the number of workers cannot change during a run."""
        return not (self.lockstep and self.processes)

    @property
    def most(self) -> int:
        """The largest number of workers."""
        return max(self.workers)

    def data(self, rows: int) -> tuple[Array, Array]:
        """Return rows of two classes, with labels of the right type."""
        return make_data(rows, self.labels)

    def compute(self, est: Estimator, x: Array) -> Array:
        """Return the model's outputs for rows, from this process if possible."""
        return np.asarray(est.predict(x) if self.outputs is None else self.outputs(est, x))

    def learned(self, est: Estimator) -> Weights:
        """Return the weights of an estimator, as arrays."""
        assert self.weights is not None, f"BackendCase({self.name!r}) trains and needs weights="
        return {name: np.asarray(value) for name, value in self.weights(est).items()}

    def expected(self, rows: int, epochs: int, batch_size: int, shuffle: bool = True) -> Weights:
        """Return the weights that one process learns from `data(rows)`."""
        if self.reference is None:
            return _trained_by_one(self, rows, epochs, batch_size, shuffle)
        return _trained(self.reference, self.labels, rows, epochs, batch_size, shuffle)


@functools.lru_cache(maxsize=64)
def _trained(
    reference: Callable[[Batches, int], Weights], labels: str, rows: int, epochs: int, batch_size: int, shuffle: bool
) -> Weights:
    """Cached by what the result depends on: backends of one framework share it."""
    x, y = make_data(rows, labels)
    return reference(batches(x, y, epochs=epochs, batch_size=batch_size, seed=SEED, shuffle=shuffle), SEED)


@functools.lru_cache(maxsize=64)
def _trained_by_one(case: BackendCase, rows: int, epochs: int, batch_size: int, shuffle: bool) -> Weights:
    alone = case.make(1, seed=SEED)
    alone.fit(*case.data(rows), epochs=epochs, batch_size=batch_size, shuffle=shuffle)
    return case.learned(alone)


def make_data(rows: int, labels: str = "int64", seed: int = 0) -> tuple[Array, Array]:
    """Return rows of two classes that a small network can learn."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    return x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(labels)


def batches(
    x: Array, y: Array, *, epochs: int, batch_size: int, seed: int, shuffle: bool = True
) -> Iterator[tuple[Array, Array]]:
    """Yield the global batches of a fit, in the documented order.

    >>> x = np.arange(3)
    >>> [rows.tolist() for rows, _ in batches(x, x, epochs=1, batch_size=2, seed=0, shuffle=False)]
    [[0, 1], [2]]
    """
    from orca.shards.orders import order_of

    order = order_of(shuffle, len(x), batch_size)
    for epoch in range(epochs):
        for step in order.epoch(seed, epoch, 0, 1):
            yield x[step.rows], y[step.rows]


def cut(x: Array, y: Array, sizes: Sequence[int]) -> XShards:
    """Return shards of the given sizes."""
    from orca.shards.xshards import XShards

    edges = np.cumsum([0, *sizes])
    assert edges[-1] == len(x), f"the sizes {sizes} are of {edges[-1]} rows, not of {len(x)}"
    return XShards.from_shards([{"x": x[low:high], "y": y[low:high]} for low, high in itertools.pairwise(edges)])


def frame_of(context: Context, x: Array, y: Array) -> Any:
    """Return the rows with a number "id" as the runtime's own kind of frame; a pandas frame if it has none."""
    import pyarrow as pa

    columns = {name: x[:, place] for place, name in enumerate(NAMES)}
    table = pa.table({"id": np.arange(len(x)), **columns, "label": y})
    if context.runtime == "spark":
        return context.spark.createDataFrame(table)
    if context.runtime == "ray":
        import ray

        return ray.data.from_arrow([table.slice(0, 30), table.slice(30, 1), table.slice(31)])
    return table.to_pandas()


def to_pandas(frame: Any) -> Any:
    """Return a frame of any kind as a pandas frame, in the order of "id"."""
    for name in ("toPandas", "to_pandas"):
        if hasattr(frame, name):
            frame = getattr(frame, name)()
            break
    return frame.sort_values("id")
