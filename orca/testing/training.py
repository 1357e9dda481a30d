"""Checks of fit and evaluate: N workers equal one process, and metrics are exact over all rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.testing.cases import NAMES, SEED, Array, BackendCase, cut, frame_of
from orca.testing.comparing import exact_metrics, near, same_history, same_scores, same_state, same_weights
from orca.testing.report import Check

if TYPE_CHECKING:
    from orca.context import Context

LAYOUTS = {
    "even_shards": (16, 16, 16),
    "uneven_shards": (5, 30, 13),
    "empty_shard": (20, 0, 28),
    "short_last_batch": (17, 17, 19),
    "last_batch_of_one": (32, 17),
}
"""Sizes of shards; batches have 16 rows."""


def _layout(sizes: Sequence[int]) -> Callable[[BackendCase, Context], None]:
    def match(case: BackendCase, context: Context) -> None:
        x, y = case.data(sum(sizes))
        expected = case.expected(len(x), epochs=2, batch_size=16)
        first = None
        for workers in case.workers if case.lockstep else (1,):
            what = f"{workers} workers on shards of {list(sizes)} rows"
            est = case.make(workers, seed=SEED)
            history = est.fit(cut(x, y, sizes), epochs=2, batch_size=16)
            same_weights(case.learned(est), expected, case, what)
            assert history["rows"] == [len(x)] * 2, f"{what}: trained on {history['rows']} rows, not on all"
            first = first or history
            near(history["loss"], first["loss"], f"{what}, losses")

    return match


def fewer_rows_than_workers(case: BackendCase, context: Context) -> None:
    """Two rows to train on and one to validate with are used once, whatever the number of workers."""
    x, y = case.data(2)
    est = case.make(case.most, seed=SEED)
    history = est.fit(x, y, epochs=2, batch_size=case.most, validation_data=(x[:1], y[:1]))
    what = f"two rows on {case.most} workers"
    same_weights(case.learned(est), case.expected(2, epochs=2, batch_size=case.most), case, what)
    assert history["rows"] == [2, 2], f"{what}: trained on {history['rows']} rows"
    scores = est.evaluate(x[:1], y[:1])
    near(history[-1]["val_loss"], scores["loss"], f"{what}: validation")
    if case.scores is not None:
        same_scores(scores, case.scores(est, x[:1], y[:1]), what)
    near(est.predict(x), case.compute(est, x), f"{what}: predictions", rtol=1e-4, atol=1e-5)


def learns_asynchronously(case: BackendCase, context: Context) -> None:
    """Workers that do not run in lockstep use each row once an epoch and make the loss smaller."""
    x, _ = case.data(101)
    y = (x[:, 0] + x[:, 1] > 0).astype(case.labels)
    est = case.make(2, seed=SEED)
    history = est.fit(cut(x, y, (3, 0, 70, 28)), epochs=10, batch_size=16)
    assert history["rows"] == [101] * 10, f"trained on {history['rows']} rows"
    assert history["loss"][-1] < history["loss"][0], f"the loss did not fall: {history['loss']}"


def _mean_output(target: Array, output: Array) -> float:
    return float(output.mean() - target.mean())


def exact_scores(case: BackendCase, context: Context) -> None:
    """Metrics of evaluate and of validation are those of all rows at once."""
    x, y = case.data(101)
    shards = cut(x, y, (3, 0, 70, 28))
    metrics: list[Any] = [*case.metrics, {"shift": _mean_output}]
    for workers in sorted({min(case.workers), case.most}):
        est = case.make(workers, seed=SEED, metrics=metrics)
        history = est.fit(shards, epochs=1, batch_size=32, validation_data=shards)
        outputs = case.compute(est, x)
        expected = {**exact_metrics(case.metrics, outputs, y), "shift": _mean_output(y, outputs)}
        expected |= {} if case.scores is None else case.scores(est, x, y)
        scores = est.evaluate(shards, batch_size=7)
        same_scores(scores, expected, f"evaluate on {workers} workers")
        named = {f"val_{name}": value for name, value in scores.items()}
        same_scores(history[-1], named, f"validation on {workers} workers")


def without_shuffling(case: BackendCase, context: Context) -> None:
    """Without shuffling rows are used in their order, and a second fit continues the first."""
    x, y = case.data(50)
    est = case.make(2, seed=SEED)
    est.fit((x, y), epochs=1, batch_size=16, shuffle=False)
    est.fit({"x": x, "y": y}, epochs=1, batch_size=16, shuffle=False)
    same_weights(case.learned(est), case.expected(50, 2, 16, shuffle=False), case, "two fits without shuffling")
    assert est.epoch == 2, f"epoch {est.epoch} after two fits of one epoch"


def sample_weights(case: BackendCase, context: Context) -> None:
    """Weights of rows count over all workers, in training and in evaluate."""
    x, y = case.data(41)
    weight = np.random.default_rng(1).uniform(0.2, 3, 41).astype("float32")
    results = []
    for workers in (1, case.most):
        est = case.make(workers, seed=SEED)
        est.fit(x, y, epochs=2, batch_size=10, sample_weight=weight, class_weight={0: 0.5, 1: 2.0})
        results.append((case.learned(est), est.evaluate(x, y, sample_weight=weight)["loss"]))
    (expected, loss), (actual, other) = results
    same_weights(actual, expected, case, f"{case.most} workers with weighted rows")
    near(other, loss, f"loss of {case.most} workers with weighted rows")
    plain = case.expected(41, 2, 10)
    assert any(not np.allclose(value, plain[name]) for name, value in actual.items()), "the weights changed nothing"


def fit_from_a_frame(case: BackendCase, context: Context) -> None:
    """A frame of the runtime's own kind trains the weights of its rows as arrays."""
    x, y = case.data(70)
    est = case.make(2, seed=SEED)
    history = est.fit(frame_of(context, x, y), epochs=2, batch_size=16, feature_cols=NAMES, label_cols=["label"])
    same_weights(case.learned(est), case.expected(70, 2, 16), case, "rows of a frame")
    assert history["rows"] == [70, 70], f"trained on {history['rows']} rows of 70"


def save_and_load(case: BackendCase, context: Context) -> None:
    """A saved state continues exactly where it was saved."""
    x, y = case.data(60)
    whole = case.make(2, seed=SEED)
    whole.fit(x, y, epochs=2, batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        second = case.make(2, seed=SEED + 1).load(whole.save(f"{folder}/state"))
    assert second.epoch == 2, f"epoch {second.epoch} after loading a state of epoch 2"
    same_state(second, whole, True, "after loading")
    history, rest = (est.fit(x, y, epochs=1, batch_size=16) for est in (whole, second))
    same_weights(case.learned(whole), case.expected(60, 3, 16), case, "two fits")
    same_state(second, whole, case.exact_resume, "one epoch after loading")
    same_history(rest, history, case.exact_resume, "one epoch after loading")


def state_before_the_first_epoch(case: BackendCase, context: Context) -> None:
    """Weights that were loaded and saved before any fit are kept, and training starts with epoch 1."""
    x, y = case.data(48)
    trained = case.make(2, seed=SEED)
    trained.fit(x, y, epochs=1, batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        first = case.make(2, seed=SEED).load_weights(trained.save_weights(f"{folder}/weights"))
        second = case.make(2, seed=SEED).load(first.save(f"{folder}/state"))
    assert (second.epoch, second.step) == (0, 0), f"epoch {second.epoch}, step {second.step}; expected 0, 0"
    same_weights(case.learned(second), case.learned(trained), case, "after loading")
    same_scores(second.evaluate(x, y), trained.evaluate(x, y), "after loading")
    history = second.fit(x, y, epochs=1, batch_size=16, resume=True)
    assert (history["epoch"], second.step) == ([1], 3), f"epochs {history['epoch']}, step {second.step}; not [1], 3"


CHECKS = [
    *(Check(name, _layout(sizes), ("trains",), remote=name == "empty_shard") for name, sizes in LAYOUTS.items()),
    Check("fewer_rows_than_workers", fewer_rows_than_workers, ("trains", "lockstep")),
    Check("exact_scores", exact_scores, ("trains",), remote=True),
    Check("without_shuffling", without_shuffling, ("trains", "lockstep")),
    Check("sample_weights", sample_weights, ("trains", "lockstep", "sample_weights")),
    Check("fit_from_a_frame", fit_from_a_frame, ("trains", "lockstep")),
    Check("learns_asynchronously", learns_asynchronously, ("trains", "asynchronous"), remote=True),
    Check("save_and_load", save_and_load, ("trains", "lockstep")),
    Check("state_before_the_first_epoch", state_before_the_first_epoch, ("trains", "lockstep")),
]
