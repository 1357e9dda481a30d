"""The conformance checks find what they are for: each mutant of a backend, runtime or adapter fails the right one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from orca_test_plugins.subprocesses import SubprocessLauncher, SubprocessRuntime

from orca.backends.base import Outcome
from orca.context import Context
from orca.errors import ArgumentError
from orca.estimator import Estimator
from orca.runs.values import Learned, Setup
from orca.testing import AdapterCase, Result, check_adapter, check_backend, check_runtime, require, table
from orca.testing.linear import LINEAR_CASE, LinearBackend, LinearReplica, LinearSpec


class MeanOfMeans(LinearReplica):
    """Averages the ranks' gradients without weighting them by rows."""

    def _gather(self, value):
        gathered = super()._gather(value)
        if not isinstance(value, tuple):
            return gathered
        return [(part / max(count, 1), 1.0) for part, count in gathered]


class CountsEmptyRanks(LinearReplica):
    """Counts a rank without rows as one row."""

    def _gather(self, value):
        gathered = super()._gather(value)
        return [(part, count or 1.0) for part, count in gathered] if isinstance(value, tuple) else gathered


class ForgetsOptimizer(LinearReplica):
    """Saves the weights alone."""

    def state(self):
        return {**super().state(), "optimizer": {}}

    def load_state(self, state):
        super().load_state({"model": state["model"]})


class MeanLoss(LinearReplica):
    """Reports the mean of a batch as its sum."""

    def evaluate_step(self, data, want_output):
        outcome = super().evaluate_step(data, want_output)
        return Outcome(outcome.loss_sum / outcome.loss_count, outcome.loss_count, outcome.target, outcome.output)


class SwapsRows(LinearReplica):
    """Returns predictions in another order."""

    def predict_step(self, features):
        return super().predict_step(features)[::-1]


class Squeezes(LinearReplica):
    """Drops an axis of length one."""

    def predict_step(self, features):
        return super().predict_step(features)[:, 0]


class IgnoresWeights(LinearReplica):
    """Trains as if all rows had the same weight."""

    def train_step(self, batch, want_output):
        data = {key: value for key, value in batch.data.items() if key != "w"}
        return super().train_step(replace(batch, data=data), want_output)

    def configure(self, options):
        super().configure(replace(options, class_weight=None))


class Mutant(LinearBackend):
    """The linear backend with another replica."""

    def __init__(self, replica):
        self._replica = replica

    def build(self, spec, context, seed, workers):
        return self._replica(spec, seed, context)

    def build_alone(self, spec, seed, threads):
        return self._replica(spec, seed)


def mutated(replica):
    def make(workers, **more):
        seed = more.pop("seed", None)
        setup = Setup.create(Mutant(replica), LinearSpec(), workers=workers, **more)
        return Estimator(setup, Learned.nothing(setup, seed))

    return replace(LINEAR_CASE, make=make)


MUTANTS = {
    MeanOfMeans: "even_shards",
    CountsEmptyRanks: "fewer_rows_than_workers",
    ForgetsOptimizer: "resume_from_a_checkpoint",
    MeanLoss: "exact_scores",
    SwapsRows: "predict_arrays",
    Squeezes: "predict_shards",
    IgnoresWeights: "sample_weights",
}


@pytest.mark.parametrize("replica", MUTANTS, ids=lambda replica: replica.__name__)
def test_a_wrong_backend_fails_the_check_of_what_is_wrong(local: Context, replica):
    (result,) = check_backend(mutated(replica), local, [MUTANTS[replica]], raises=False)
    assert result.outcome == "failed"
    assert "AssertionError" in result.detail
    (result,) = check_backend(LINEAR_CASE, local, [MUTANTS[replica]])
    assert result.outcome == "passed"


def test_all_failed_checks_are_in_one_error(local: Context):
    with pytest.raises(AssertionError, match=r"2 of 3 checks failed(.|\n)*predict_arrays(.|\n)*predict_shards"):
        check_backend(mutated(SwapsRows), local, ["even_shards", "predict_arrays", "predict_shards"])
    with pytest.raises(ArgumentError, match=r"evn_shards.*Did you mean 'even_shards'"):
        check_backend(LINEAR_CASE, local, ["evn_shards"])


class LeavesRanks(SubprocessLauncher):
    """Ends nothing."""

    def stop(self, hellos, patience):
        survivors.extend(self._processes)
        self._processes = []


class SaysNothing(SubprocessLauncher):
    """Does not report deaths."""

    def deaths(self):
        return {}


survivors: list[subprocess.Popen[bytes]] = []


@pytest.mark.parametrize(
    ("launcher", "check", "words"),
    [
        # Ranks leave by themselves when the driver hangs up; one that was stopped cannot.
        pytest.param(LeavesRanks, "stopped_rank", "left behind: {'stopped'", marks=pytest.mark.slow),
        (SaysNothing, "killed_rank", "does not say 'kill'"),
    ],
)
def test_a_wrong_runtime_fails_the_check_of_what_is_wrong(monkeypatch, launcher, check, words):
    monkeypatch.setattr(SubprocessRuntime, "launcher", lambda runtime, preload=(): launcher(runtime.cores))
    try:
        (result,) = check_runtime("subprocesses", [check], raises=False)
    finally:
        for process in survivors:
            process.kill()
            process.wait()
    assert result.outcome == "failed"
    assert words in result.detail


WRONG_DATA = {
    "rows in another order": (lambda frame: frame[::-1].reset_index(drop=True), "fit"),
    "a missing row": (lambda frame: frame[:-1], "fit"),
    "another name": (lambda frame: frame.rename(columns={"label": "labels"}), "columns"),
    "no adapter": (lambda frame: object(), "recognized"),
    "another kind": (lambda frame: frame, "predict"),
}


@pytest.mark.parametrize("name", WRONG_DATA)
def test_wrong_data_fails_the_check_of_what_is_wrong(local: Context, name):
    make, check = WRONG_DATA[name]
    case = AdapterCase(name, make, kind=dict if name == "another kind" else None)
    (result,) = check_adapter(case, local, [check], raises=False)
    assert result.outcome == "failed"
    assert check_adapter(AdapterCase("frame", pd.DataFrame), local, [check])[0].outcome == "passed"


def test_skipped_checks_say_why_and_the_table_has_times(local: Context):
    only = replace(LINEAR_CASE, inference_only=True)
    results = check_backend(only, local, ["even_shards", "misspelled_column"])
    assert [(result.outcome, result.detail) for result in results] == [("skipped", "needs trains"), ("passed", "")]
    text = table([*results, Result("even_shards", 1.25, "failed", "", "other", "ray")])
    lines = text.splitlines()
    assert lines[0].split() == ["local", "ray"]
    assert "linear.gathered" in lines[1]
    assert "1 passed, 1 skipped" in lines[1]
    assert lines[2].split() == ["other", "1", "failed", "1.2", "s", "(even_shards)"]
    require(results)


def test_a_backend_without_a_reference_is_compared_with_one_worker(local: Context):
    case = replace(LINEAR_CASE, reference=None, outputs=None, scores=None)
    check_backend(case, local, ["uneven_shards", "exact_scores", "predict_arrays"])
    broken = replace(mutated(MeanOfMeans), reference=None)
    (result,) = check_backend(broken, local, ["uneven_shards"], raises=False)
    assert result.outcome == "failed"


def test_importing_the_kit_imports_neither_pytest_nor_a_framework():
    code = """
        import sys
        from orca.testing import check_adapter, check_backend, check_runtime
        heavy = ("pytest", "torch", "tensorflow", "keras", "mxnet", "ray", "pyspark", "openvino", "pandas", "sklearn")
        print([name for name in heavy if name in sys.modules])
    """
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert output.stdout.strip() == "[]"


def test_exact_metrics_follow_their_definitions():
    from sklearn.metrics import f1_score, roc_auc_score

    from orca.testing.comparing import exact_metrics

    rng = np.random.default_rng(0)
    scores, y = rng.integers(0, 5, 200) / 4, rng.integers(0, 2, 200)
    values = exact_metrics(["accuracy", "auc", "f1"], scores, y)
    assert values["auc"] == pytest.approx(roc_auc_score(y, scores))
    assert values["f1"] == pytest.approx(f1_score(y, scores > 0.5))
    assert values["accuracy"] == pytest.approx(((scores > 0.5) == y).mean())
