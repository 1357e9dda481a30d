"""The Estimator: what users hold. It checks, dispatches to a gang of ranks, and keeps what was learned."""

from __future__ import annotations

import operator
import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from orca import checkpoint
from orca.backends.base import Backend, State
from orca.backends.loop import FitPlan, Job, Predict, evaluate_on_rank, fit_on_rank
from orca.backends.registry import find
from orca.context import Context, current
from orca.errors import ArgumentError, DataError, NotFittedError
from orca.history import History
from orca.launch.gang import Gang
from orca.machine import usable_cpus
from orca.metrics import resolve
from orca.progress import Progress
from orca.shards.columns import Columns, flat
from orca.shards.convert import Form, check_features, from_frames, recognise, to_frames, to_shards
from orca.shards.tree import join_rows
from orca.shards.xshards import XShards


class Estimator:
    """Trains and runs a standard model on several workers. Make one with a ``from_*`` method.

    >>> import numpy as np, torch
    >>> est = Estimator.from_torch(model=torch.nn.Linear(2, 1), optimizer=torch.optim.SGD,
    ...                            loss=torch.nn.MSELoss(), config={"lr": 0.1}, workers=1, seed=1)
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    >>> history = est.fit(x, x.sum(axis=1), epochs=200, batch_size=4)
    >>> bool(history["loss"][-1] < 1e-3)
    True
    """

    def __init__(
        self, backend: Backend, spec: Any, *, workers: int = 1, metrics: Any = None, seed: int | None = None
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ArgumentError(f"workers={workers!r}: expected a whole number of at least 1.")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ArgumentError(f"seed={seed!r}: expected a whole number of at least 0, or None.")
        backend.check(spec, workers)
        self.backend = backend
        self.spec = spec
        self.workers = workers
        self.metrics = resolve(metrics, adapt=backend.adapt_metric, class_axis=backend.class_axis)
        self.metrics = backend.tune_metrics(spec, self.metrics)
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self.epoch = 0
        self._state: State | None = None
        self._version = 0
        self._owner = uuid.uuid4().hex

    @classmethod
    def from_torch(
        cls,
        *,
        model: Any,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        config: dict[str, Any] | None = None,
        backend: str = "torch_distributed",
        workers: int = 1,
        seed: int | None = None,
    ) -> Estimator:
        """Make an estimator from a PyTorch model.

        ``model`` is a module, a class of one or a creator ``fn(config)``; ``optimizer`` an optimizer of that
        module, a class or a creator ``fn(model, config)``; ``loss`` a loss module, class, creator or function
        of (output, target) that returns the mean over the rows.
        """
        found = find("torch", backend)
        from orca.backends.torch.spec import TorchSpec

        return cls(
            found,
            TorchSpec(model, optimizer, loss, dict(config or {})),
            workers=workers,
            metrics=metrics,
            seed=seed,
        )

    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        validation_data: Any = None,
        feature_cols: Columns = None,
        label_cols: Columns = None,
        shuffle: bool = True,
        progress: bool | None = None,
    ) -> History:
        """Train for some epochs and return their History; a further fit goes on from there.

        ``data`` is ``x`` with ``y`` beside it, a tuple ``(x, y)``, a dict ``{"x": …, "y": …}`` (each an array
        or, for several inputs, a dict, list or tuple of arrays), an XShards of such dicts, or anything with
        columns (a pandas, Spark or Ray frame, an Arrow table, an XShards of frames) together with
        ``feature_cols`` and ``label_cols``; a torch or tf.data dataset; or a creator ``fn(config, batch_size)``
        that returns one of these. ``batch_size`` counts the rows of a step over all workers.
        """
        if isinstance(y, int) and not isinstance(y, bool):
            epochs, y = y, None
        self.backend.check_fit(self.spec)
        epochs = _check_count("epochs", epochs)
        batch_size = _check_count("batch_size", batch_size)
        if batch_size < self.workers:
            raise ArgumentError(
                f"batch_size={batch_size} is smaller than workers={self.workers}. batch_size counts the rows of "
                f"a step over all workers: use at least {self.workers}."
            )
        context = current()
        gang = self._gang(context)
        plan = FitPlan(self.epoch, epochs, batch_size, shuffle, validation_data is not None)
        with ExitStack() as stack:
            form = self._form(feature_cols, label_cols, batch_size)
            sources = {"train": stack.enter_context(_borrowed(data, y, context, form))}
            if validation_data is not None:
                form = replace(form, argument="validation_data")
                sources["validation"] = stack.enter_context(_borrowed(validation_data, None, context, form))
            show = stack.enter_context(Progress(self.epoch + epochs, progress))
            stack.enter_context(gang.lock)
            results = gang.call(fit_on_rank, self._job(gang), plan, sources=sources, on_event=show)
            records, self._state = results[0]
            self._version += 1
            self.epoch += epochs
            self._remember(gang)
        return History(records)

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        batch_size: int = 256,
        feature_cols: Columns = None,
        label_cols: Columns = None,
    ) -> dict[str, float]:
        """Return loss and metrics over all rows, exactly as one process over all rows would."""
        batch_size = _check_count("batch_size", batch_size)
        context = current()
        gang = self._gang(context)
        with _borrowed(data, y, context, self._form(feature_cols, label_cols, batch_size)) as shards, gang.lock:
            show = Progress(0, show=False)
            results = gang.call(evaluate_on_rank, self._job(gang), batch_size, sources={"data": shards}, on_event=show)
            self._remember(gang)
        return dict(results[0])

    def predict(self, data: Any, *, batch_size: int = 256, feature_cols: Columns = None) -> Any:
        """Return the model's outputs, row by row as given: arrays for arrays, a frame for a frame.

        An XShards, DataFrame (pandas, Spark) or Ray Dataset comes back with ``prediction`` added to each row;
        XShards and Spark DataFrames are computed when needed.
        """
        batch_size = _check_count("batch_size", batch_size)
        context = current()
        context.preload = self.backend.preload
        # Local ranks know their share of the cores; tasks of Ray and Spark are given one core each.
        threads = None if context.runtime == "local" else 1
        job = Job(self.backend, self.spec, self._owner, self._version, self._state, self.seed)
        step = Predict(job, batch_size, threads)
        kind = recognise(data)
        if kind in ("spark", "ray", "frame", "table") or (kind == "shards" and feature_cols is not None):
            form = self._form(feature_cols if feature_cols is not None else ["features"], None)
            step = replace(step, feature_cols=form.feature_cols, together=form.together)
            frames = to_frames(data, kind, self.workers)
            check_features(frames, form)
            return from_frames(frames.transform_shard(step), kind)
        # Fewer, larger tasks: one per worker, as each loads the model once.
        shards = to_shards(data, None, context.engine, Form(need_labels=False), parts=self.workers)
        if kind == "shards":
            return shards.transform_shard(step)
        predicted = shards.transform_shard(replace(step, only_prediction=True))
        return join_rows([part["output"] for part in predicted.collect()])

    def get_model(self) -> Any:
        """The model as an object of its framework, with the weights learned so far."""
        return self.backend.model(self.spec, self._state, self.seed)

    def save(self, path: str) -> str:
        """Save what was learned (weights, optimizer, epoch) to a folder on any fsspec path; return the path."""
        if self._state is None:
            raise NotFittedError("There is nothing to save yet: call fit or load first.")
        about = {"backend": self.backend.name, "framework": self.backend.framework, "epoch": self.epoch}
        checkpoint.save(path, {**about, "seed": self.seed}, self._state)
        return path

    def load(self, path: str) -> Estimator:
        """Take over what `save` wrote; return the estimator itself."""
        about, state = checkpoint.load(path)
        if about["framework"] != self.backend.framework:
            raise DataError(
                f"path={path!r} was saved from {about['framework']}; this estimator is for {self.backend.framework}."
            )
        self._state = state
        self.epoch = int(about["epoch"])
        # The order of the epochs to come depends on the seed: going on exactly needs the one that was used.
        self.seed = int(about["seed"])
        self._version += 1
        return self

    def explain(self) -> str:
        """Say what will run where, before anything starts."""
        context = current()
        launcher = context.launcher(self.backend.preload)
        slots = launcher.slots()
        threads = max(1, usable_cpus() // self.workers)
        lines = [
            f"{self.backend.framework} model, backend {self.backend.name}, epoch {self.epoch}, seed {self.seed}",
            f"runtime {context.runtime}: {self.workers} of {slots} slots",
            *self.backend.notes(self.spec),
            f"ranks 0 to {self.workers - 1}: {threads} thread{'s' if threads > 1 else ''} each"
            + (" if they share one host" if context.runtime != "local" else ""),
            f"control channel: {launcher.bind}, a port held by the driver; rendezvous: a port held by rank 0",
            f"data: every step's batch is cut evenly over {self.workers} ranks",
        ]
        if self.workers > slots:
            lines.append(f"will not start: {launcher.advice(self.workers)}")
        gang = context.warm(self.workers, self.backend.preload)
        for hello in gang.places if gang is not None else ():
            lines.append(f"rank {hello.rank}: running, host {hello.host}, process {hello.pid}")
        return "\n".join(lines)

    def shutdown(self) -> None:
        """End the worker processes of this estimator's size; the next call starts new ones."""
        current().stop_gang(self.workers, self.backend.preload)

    def _form(self, feature_cols: Columns, label_cols: Columns, batch_size: int = 32) -> Form:
        inputs = self.backend.input_count(self.spec)
        together = inputs is None or inputs == 1 or inputs != len(flat(feature_cols))
        config = getattr(self.spec, "config", {})
        return Form(
            feature_cols=feature_cols, label_cols=label_cols, together=together, config=config, batch_size=batch_size
        )

    def _gang(self, context: Context) -> Gang:
        context.preload = self.backend.preload
        return context.gang(self.workers, self.backend.preload)

    def _job(self, gang: Gang) -> Job:
        """The job for the ranks; the state travels only if they do not have it already. Needs the gang's lock."""
        gang.refresh()
        known = gang.running and gang.memory.get("replica") == (self._owner, self._version)
        state = None if known else self._state
        return Job(self.backend, self.spec, self._owner, self._version, state, self.seed, tuple(self.metrics))

    def _remember(self, gang: Gang) -> None:
        if gang.running:
            gang.memory["replica"] = (self._owner, self._version)

    def __getstate__(self) -> dict[str, Any]:
        # A copy is another estimator: what the ranks hold of this one is not its.
        return {**self.__dict__, "_owner": uuid.uuid4().hex}

    def __repr__(self) -> str:
        return f"<Estimator: {self.backend.framework}, backend {self.backend.name}, {self.workers} workers>"


@contextmanager
def _borrowed(data: Any, y: Any, context: Context, form: Form) -> Iterator[XShards]:
    """The data as shards; what had to be copied for this call is freed after it, also if it fails."""
    shards = to_shards(data, y, context.engine, form)
    try:
        yield shards
    finally:
        if not shards.shares_parts(data):
            shards.free()


def _check_count(name: str, value: Any) -> int:
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = -1
    if count < 1:
        raise ArgumentError(f"{name}={value!r}: expected a whole number of at least 1.")
    return count


__all__: Sequence[str] = ["Estimator"]
