"""One graph on one rank: its training, evaluation and prediction steps, and its state."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orca.backends.base import Outcome, Replica, State, StepOptions
from orca.backends.graph import random_ops
from orca.backends.graph.feeding import arrays_for
from orca.backends.graph.metrics import StreamMetrics
from orca.backends.graph.program import Array, Program
from orca.backends.graph.rates import GraphOptimizer
from orca.backends.graph.runner import Clip, Runner, check_values
from orca.backends.graph.spec import GraphSpec
from orca.errors import DataError
from orca.shards.feed import Batch
from orca.shards.tree import join_rows, row_count, take_rows, tree_map


class GraphReplica(Replica):
    """Trains, scores and predicts with one program in a session."""

    def __init__(self, spec: GraphSpec, seed: int, reducer: Any = None, threads: int = 0, trains: bool = True) -> None:
        self._spec, self._program = spec, spec.program
        self._seed, self._reducer, self._threads, self._trains = seed, reducer, threads, trains
        self._clip: Clip = (spec.clip_norm, spec.clip_value)
        self._pieces = 1
        """Number of pieces in which the rows of a step are computed."""
        self._runner: Runner | None = None
        if trains and self._program.streams:
            self.own_metrics = StreamMetrics(self._running)
        self._kept: Array | None = None
        """The random states of training, while rows are scored: that must not change the steps that follow."""
        first = self._program.rate
        self.inner_optimizer = GraphOptimizer(None if isinstance(first, str) else first, tuple(self._program.rates))
        self._feeds = [feed.tensor for feed in self._program.feeds]
        self._train_values = [feed.train for feed in self._program.feeds]
        self._test_values = [feed.test for feed in self._program.feeds]

    def _running(self) -> Runner:
        """Return the session, made when it is first needed."""
        if self._runner is None:
            self._runner = Runner(
                self._program,
                self._seed,
                trains=self._trains,
                reducer=self._reducer,
                clip=self._clip,
                pieces=self._pieces > 1,
                threads=self._threads,
            )
            self._runner.assign(self._spec.values)
        return self._runner

    @property
    def inner_model(self) -> Any:
        return self._running().session

    # -- steps

    def configure(self, options: StepOptions) -> None:
        clip = (options.clip_norm or self._spec.clip_norm, options.clip_value or self._spec.clip_value)
        changed = (clip, options.accumulate > 1) != (self._clip, self._pieces > 1)
        self._clip, self._pieces = clip, options.accumulate
        if changed and self._runner is not None:
            # Both are part of the graph: it is built again, and continues with the same values.
            state, before = self.state(), self._runner
            self._runner = None
            self.load_state(state)
            before.close()

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        runner, program = self._running(), self._program
        assert program.train is not None
        if self._kept is not None:
            runner.seed_randoms(self._kept)
            self._kept = None
        rates = {program.rates[prefix]: rate for prefix, rate in self.inner_optimizer.rates.items()
                 if prefix in program.rates}  # fmt: skip
        extra = {name: np.array(rate, np.float32) for name, rate in rates.items()}
        if runner.carried:
            return self._train_in_pieces(runner, batch, want_output, extra)
        if runner.scale is not None:
            extra[runner.scale] = np.array(0.0 if batch.filler else batch.rows / batch.total, np.float32)
        return self._train(runner, batch, want_output, extra, [program.train])

    def _train(
        self, runner: Runner, batch: Batch, want_output: bool, extra: Mapping[str, Any], targets: Sequence[str]
    ) -> Outcome:
        feeds, values = self._rows(batch.data)
        feeds, values = [*feeds, *self._feeds, *extra], [*values, *self._train_values, *extra.values()]
        if batch.filler:
            runner.run([], feeds, values, targets)
            return Outcome(0.0, 0.0)
        results = runner.run(self._fetches(want_output), feeds, values, targets)
        return self._outcome(results, batch.data, batch.rows, want_output)

    def _train_in_pieces(self, runner: Runner, batch: Batch, want_output: bool, extra: Mapping[str, Any]) -> Outcome:
        """Sum the gradients of all pieces of the rows but the last, then train on that with the sums added."""
        program, outcomes = self._program, []
        assert program.train is not None
        assert runner.scale is not None
        *pieces, last = _pieces(batch, 1 if batch.filler else max(1, min(self._pieces, batch.least)))
        sums = runner.zeros()
        for piece in pieces:
            feeds, values = self._rows(piece.data)
            feeds, values = [*feeds, *self._feeds], [*values, *self._train_values]
            fetches = self._fetches(want_output)
            results = runner.run([*fetches, *runner.gradients], feeds, values, program.updates)
            outcomes.append(self._outcome(results[: len(fetches)], piece.data, piece.rows, want_output))
            share = piece.rows / batch.total
            sums = [a + b * b.dtype.type(share) for a, b in zip(sums, results[len(fetches) :], strict=True)]
        extra = {**extra, **dict(zip(runner.carried, sums, strict=True))}
        extra[runner.scale] = np.array(0.0 if batch.filler else last.rows / batch.total, np.float32)
        outcomes.append(self._train(runner, last, want_output, extra, [program.train]))
        return outcomes[0] if len(outcomes) == 1 else _joined(outcomes)

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        if self._program.randoms and self._kept is None:
            self._kept = self._running().random_states()
        feeds, values = self._rows(data)
        feeds, values = [*feeds, *self._feeds], [*values, *self._test_values]
        results = self._running().run(self._fetches(want_output), feeds, values)
        return self._outcome(results, data, row_count(data["x"]), want_output)

    def predict_step(self, features: Any) -> Any:
        program, rows = self._program, row_count(features)
        if not program.outputs:
            raise DataError("outputs is None; it should not be None in prediction: give outputs= to from_graph.")
        ports = program.inputs
        feeds = [*(port.tensor for port in ports), *self._feeds]
        values = [*arrays_for(features, ports, "x"), *self._test_values]
        outputs = self._running().run([port.tensor for port in program.outputs], feeds, values)
        for port, output in zip(program.outputs, outputs, strict=True):
            if np.ndim(output) == 0 or len(output) != rows:
                raise DataError(
                    f"The output {port.name!r} has shape {np.shape(output)} for {rows} rows; expected one entry per "
                    "row, as the first axis."
                )
        return self._structured(outputs)

    def _structured(self, outputs: Sequence[Any]) -> Any:
        arrays = [np.asarray(output).astype(str) if output.dtype == object else output for output in outputs]
        return tree_map(lambda number: arrays[number], self._program.output_form)

    def _rows(self, data: Any) -> tuple[list[str], list[Any]]:
        program = self._program
        if program.labels and (not isinstance(data, dict) or "y" not in data):
            raise DataError('The graph has labels: give {"x": …, "y": …}, (x, y) or fit(x, y).')
        features = data["x"] if isinstance(data, dict) and "x" in data else data
        feeds = [port.tensor for port in (*program.inputs, *program.labels)]
        labels = arrays_for(data["y"], program.labels, "y") if program.labels else []
        return feeds, [*arrays_for(features, program.inputs, "x"), *labels]

    def _fetches(self, want_output: bool) -> list[str]:
        program = self._program
        loss = [] if program.loss is None else [program.loss]
        outputs = [port.tensor for port in program.outputs] if want_output else []
        streams = [stream.update for stream in program.streams]
        return [*loss, *program.metrics.values(), *outputs, *streams]

    def _outcome(self, results: Sequence[Any], data: Any, rows: int, want_output: bool) -> Outcome:
        program, results = self._program, list(results)
        loss_sum, loss_count = 0.0, 0.0
        if program.loss is not None:
            loss_sum, loss_count = float(results.pop(0)) * rows, float(rows)
        extra = {name: _row_sum(results.pop(0), rows, name) for name in program.metrics}
        target = output = None
        if want_output:
            output = self._structured(results[: len(program.outputs)])
            target = data.get("y")
        return Outcome(loss_sum, loss_count, target, output, extra)

    # -- state

    def state(self) -> State:
        runner = self._running()
        values = runner.values(runner.variables)
        slots = {variable.name for variable in self._program.optimizer}
        state: State = {"model": {name: value for name, value in values.items() if name not in slots}}
        if self._trains and self._program.train is not None:
            state["optimizer"] = {name: value for name, value in values.items() if name in slots}
            state["optimizer"] |= self.inner_optimizer.state()
        return state

    def load_state(self, state: State) -> None:
        runner = self._running()
        check_state(self._program, state)
        values = {**state["model"], **(state.get("optimizer") or {})}
        runner.assign(values)
        self.inner_optimizer.load_state(values)

    def reseed(self, seed: int, epoch: int, rank: int) -> None:
        self._kept = None
        self._running().seed_randoms(random_ops.states(seed, epoch, rank, len(self._program.randoms)))

    def random_state(self) -> State:
        return {"states": self._running().random_states() if self._kept is None else self._kept}

    def load_random_state(self, state: State) -> None:
        self._kept = None
        self._running().seed_randoms(state["states"])

    def any(self, flag: bool) -> bool | None:
        return flag if self._reducer is None else bool(self._reducer.total(float(flag)) > 0)

    def settle(self) -> None:
        """Replace running statistics with their mean over the ranks."""
        names = self._program.statistics
        if self._reducer is None or not names:
            return
        runner = self._running()
        chosen = [variable for variable in runner.variables if variable.name in names]
        values = runner.values(chosen)
        import tensorflow as tf

        sums = self._reducer.sums([tf.constant(value) for value in values.values()], "settle")
        world = self._reducer.world
        runner.assign({name: np.asarray(total) / world for name, total in zip(values, sums, strict=True)})

    def learning_rate(self) -> float | None:
        rate, own = self._program.rate, self.inner_optimizer.learning_rate
        return own if own is not None or rate is None else float(self._running().session.run(rate))


def check_state(program: Program, state: State) -> None:
    """Raise unless a state has a value for each variable of the model, and for each of the optimizer if it has any."""
    check_values(program.model, state.get("model") or {}, "The state")
    if program.optimizer and state.get("optimizer"):
        check_values(program.optimizer, state["optimizer"], "The optimizer's state")


def _pieces(batch: Batch, count: int) -> list[Batch]:
    """Split a step's rows into pieces of equal sizes, up to one row."""
    if count == 1:
        return [batch]
    ends = [batch.rows * number // count for number in range(count + 1)]
    return [
        Batch(take_rows(batch.data, start, stop), stop - start, batch.total) for start, stop in itertools.pairwise(ends)
    ]


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of a step from those of its pieces."""
    first = outcomes[0]
    target, output = (
        None if getattr(first, name) is None else join_rows([getattr(one, name) for one in outcomes])
        for name in ("target", "output")
    )
    return Outcome(
        sum(one.loss_sum for one in outcomes),
        sum(one.loss_count for one in outcomes),
        target,
        output,
        {name: sum(one.extra[name] for one in outcomes) for name in first.extra},
    )


def _row_sum(value: Array, rows: int, name: str) -> float:
    """Return the sum over rows of a metric: a mean of the batch, or one value per row."""
    if np.ndim(value) == 0:
        return float(value) * rows
    if len(value) != rows:
        raise DataError(f"The metric {name!r} has shape {np.shape(value)} for {rows} rows; expected () or one per row.")
    return float(np.asarray(value, np.float64).reshape(rows, -1).mean(axis=1).sum())
