"""Metrics from torchmetrics, merged over uneven parts, equal one torchmetrics update with all rows."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

torchmetrics = pytest.importorskip("torchmetrics")

from torchmetrics import classification, regression
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.retrieval import RetrievalMAP

from orca.backends.torch.metrics import adapt
from orca.errors import ArgumentError, DataError
from orca.metrics import Metric

ROWS = 61
rng = np.random.default_rng(11)
TWO = rng.integers(0, 2, ROWS)
FOUR = rng.integers(0, 4, ROWS)
SHARES = rng.dirichlet(np.ones(4), ROWS).astype(np.float32)
# Many of these logits are inside 0..1, so small batches of them look like probabilities.
LOGITS = rng.normal(0.5, 0.6, ROWS).astype(np.float32)
FOUR_LOGITS = rng.normal(0.5, 0.4, (ROWS, 4)).astype(np.float32)
CHANCES = rng.random(ROWS).astype(np.float32)
REAL = rng.normal(3, 2, ROWS).astype(np.float32)
NEAR = (REAL + rng.normal(size=ROWS)).astype(np.float32)
PICTURES = rng.random((2, ROWS, 1, 3, 3)).astype(np.float32)


class BatchMean(torchmetrics.Metric):
    """A mean over all rows, which an average over parts of different sizes would get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("rows", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        self.mean = (self.mean * self.rows + (preds - target).abs().sum()) / (self.rows + len(target))
        self.rows += len(target)

    def compute(self) -> torch.Tensor:
        return self.mean


class NoState(torchmetrics.Metric):
    """Accumulates outside its torchmetrics states: in an attribute, a buffer or a list."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.count, self.counts = where, 0, []
        self.register_buffer("buffer", torch.zeros(()))
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        self.total += (preds - target).abs().sum()
        if self.where == "attribute":
            self.count += len(target)
        elif self.where == "buffer":
            self.buffer += len(target)
        else:
            self.counts.append(len(target))

    def compute(self) -> torch.Tensor:
        return self.total / (self.count + self.buffer + sum(self.counts))


class Spread(torchmetrics.Metric):
    """Custom reduction, no reduction, minimum, maximum, and a sum that does not start at zero."""

    def __init__(self, reduction: Any = "sum") -> None:
        super().__init__()
        self.add_state("low", torch.tensor(math.inf), dist_reduce_fx="min")
        self.add_state("high", torch.tensor(-math.inf), dist_reduce_fx="max")
        self.add_state("rows", torch.tensor(100.0), dist_reduce_fx=reduction)

    def update(self, target: torch.Tensor, preds: torch.Tensor) -> None:
        self.low, self.high = torch.minimum(self.low, target.min()), torch.maximum(self.high, preds.max())
        self.rows += len(target)

    def compute(self) -> torch.Tensor:
        return (self.high - self.low) * self.rows


def refuse_sync(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("torchmetrics asked the process group")


def adapted(source: Any) -> Metric:
    metric = adapt(source)
    assert isinstance(metric, Metric)
    return metric


def in_pieces(metric: Metric, target: Any, output: Any, pieces: list[slice]) -> float:
    """Score pieces on three ranks and one more without rows, and merge their pickled states."""
    ranks = [metric.empty() for _ in range(4)]
    for number, piece in enumerate(pieces):
        ranks[number % 3] = metric.update(ranks[number % 3], target[piece], output[piece])
    states = pickle.loads(pickle.dumps(ranks))
    before = pickle.dumps(states)
    twin = pickle.loads(pickle.dumps(metric))
    value = twin.compute(twin.merge([twin.merge(states[:2]), twin.merge(states[2:])]))
    assert pickle.dumps(states) == before, "merge or compute changed its input"
    return float(value)


def cut(bounds: list[int]) -> list[slice]:
    return [slice(a, b) for a, b in itertools.pairwise([0, *bounds, ROWS])]


UNEVEN = [cut([1, 2, 3, 4, 30]), cut([0, 0, 17, 18, 59, 60]), cut([ROWS - 1]), cut([])]

CASES: dict[str, tuple[Any, Any, list[Any]]] = {
    "accuracy_binary": (classification.BinaryAccuracy(), TWO, [CHANCES, LOGITS, TWO[::-1].copy()]),
    "accuracy_four": (torchmetrics.Accuracy(task="multiclass", num_classes=4), FOUR, [SHARES, FOUR_LOGITS]),
    "accuracy_labels": (classification.MultilabelAccuracy(4), SHARES > 0.2, [SHARES, FOUR_LOGITS]),
    "auroc": (torchmetrics.AUROC(task="binary"), TWO, [CHANCES, LOGITS]),
    "auroc_bins": (classification.BinaryAUROC(thresholds=20), TWO, [CHANCES, LOGITS]),
    "auroc_four": (classification.MulticlassAUROC(4), FOUR, [SHARES, FOUR_LOGITS]),
    "auroc_four_bins": (classification.MulticlassAUROC(4, thresholds=30), FOUR, [SHARES, FOUR_LOGITS]),
    "f1_binary": (classification.BinaryF1Score(), TWO, [CHANCES, LOGITS]),
    "f1_four": (torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"), FOUR, [SHARES]),
    "calibration": (classification.MulticlassCalibrationError(4), FOUR, [SHARES, FOUR_LOGITS]),
    "mse": (torchmetrics.MeanSquaredError(), REAL, [NEAR]),
    "r2": (torchmetrics.R2Score(), REAL, [NEAR]),
    "cat": (torchmetrics.SpearmanCorrCoef(), REAL, [NEAR]),
    "stacked": (torchmetrics.PearsonCorrCoef(), REAL, [NEAR]),
    "nrmse": (regression.NormalizedRootMeanSquaredError(), REAL, [NEAR]),
    "constant_mean": (PeakSignalNoiseRatio(data_range=1.0), PICTURES[0], [PICTURES[1]]),
    "mean": (BatchMean(), REAL, [NEAR]),
    "attribute": (NoState("attribute"), REAL, [NEAR]),
    "buffer": (NoState("buffer"), REAL, [NEAR]),
    "list": (NoState("list"), REAL, [NEAR]),
    "min_max": (Spread(), REAL, [NEAR]),
    "own_reduction": (Spread(torch.sum), REAL, [NEAR]),
    "no_reduction": (Spread(None), REAL, [NEAR]),
    "composed": (torchmetrics.MeanSquaredError() * 2 + torchmetrics.MeanAbsoluteError(), REAL, [NEAR]),
}


@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef`")
@pytest.mark.parametrize("case", CASES)
def test_uneven_parts_equal_one_update_with_all_rows(case: str) -> None:
    theirs, target, outputs = CASES[case]
    metric = adapted(theirs)
    for output in outputs:
        alone = theirs.clone()
        alone.update(preds=torch.from_numpy(output), target=torch.from_numpy(target))
        expected = float(alone.compute())
        assert math.isfinite(expected)
        for pieces in UNEVEN:
            # Twice with the same object, which must be stateless.
            for _ in range(2):
                assert in_pieces(metric, target, output, pieces) == pytest.approx(expected, rel=2e-6, abs=1e-7)


def test_logits_are_recognized_even_if_a_batch_looks_like_probabilities() -> None:
    theirs = classification.BinaryAccuracy()
    for piece in (slice(n, n + 1) for n in range(ROWS)):
        theirs.update(torch.from_numpy(LOGITS[piece]), torch.from_numpy(TWO[piece]))
    exact = ((LOGITS > 0) == TWO).mean()
    assert float(theirs.compute()) != pytest.approx(exact), "torchmetrics alone depends on the batches"
    assert in_pieces(adapted(theirs), TWO, LOGITS, cut(list(range(ROWS)))) == pytest.approx(exact)


def test_only_metrics_that_cannot_be_merged_keep_rows() -> None:
    small = {"accuracy_binary", "accuracy_four", "accuracy_labels", "auroc_bins", "auroc_four_bins", "f1_binary"}
    small |= {"f1_four", "mse", "r2", "constant_mean", "min_max"}
    for case, (theirs, target, outputs) in CASES.items():
        metric = adapted(theirs)
        state = metric.update(metric.empty(), target, outputs[0])
        assert ("targets" in state) == (case not in small | {"cat"}), case
        if case in small:
            again = metric.update(metric.update(metric.empty(), target, outputs[0]), target, outputs[0])
            assert len(pickle.dumps(again)) == len(pickle.dumps(state)), case


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (classification.MulticlassAccuracy(3), "accuracy"),
        (classification.BinaryAccuracy, "accuracy"),
        (classification.MulticlassAccuracy(9, top_k=5), "top5_accuracy"),
        (functools.partial(classification.MulticlassAccuracy, 3), "accuracy"),
        (torchmetrics.MeanSquaredError, "mse"),
        (torchmetrics.MeanSquaredError(squared=False), "rmse"),
        (torchmetrics.MeanAbsoluteError(), "mae"),
        (torchmetrics.R2Score, "r2"),
        (classification.MultilabelAUROC(3), "auc"),
        (classification.BinaryF1Score(), "f1"),
        (classification.BinaryPrecision(), "precision"),
        (classification.MulticlassRecall(3), "recall"),
        (torchmetrics.PearsonCorrCoef(), "pearson_corr_coef"),
        (classification.BinaryMatthewsCorrCoef, "matthews_corr_coef"),
        (BatchMean, "batch_mean"),
    ],
)
def test_objects_and_classes_get_orcas_names(source: Any, name: str) -> None:
    assert adapted(source).name == name


def test_a_class_is_equivalent_to_its_instance() -> None:
    assert in_pieces(adapted(torchmetrics.MeanSquaredError), REAL, NEAR, UNEVEN[0]) == pytest.approx(
        ((REAL - NEAR) ** 2).mean(), rel=1e-5
    )


def test_a_collection_gives_one_metric_per_member_with_orcas_or_the_users_name() -> None:
    members = [classification.BinaryAccuracy(), classification.BinaryF1Score()]
    metrics = adapt(torchmetrics.MetricCollection(members))
    assert isinstance(metrics, list)
    assert [metric.name for metric in metrics] == ["accuracy", "f1"]
    assert in_pieces(metrics[0], TWO, LOGITS, UNEVEN[0]) == pytest.approx(((LOGITS > 0) == TWO).mean())
    named = adapt(torchmetrics.MetricCollection({"right": members[0], "f": members[1]}, prefix="my_"))
    assert isinstance(named, list)
    assert [metric.name for metric in named] == ["my_f", "my_right"], "torchmetrics sorts them"


def test_classes_may_be_floats_or_a_column() -> None:
    metric, exact = adapted(classification.BinaryAccuracy()), ((CHANCES > 0.5) == TWO).mean()
    for target in (TWO.astype(np.float32), TWO[:, None], TWO.astype(np.uint8), TWO == 1, TWO.astype(np.uint16)):
        for output in (CHANCES, CHANCES[:, None], CHANCES.astype(np.float64)):
            assert metric.compute(metric.update(metric.empty(), target, output)) == pytest.approx(exact)
    error = adapted(torchmetrics.MeanAbsoluteError())
    state = error.update(error.empty(), REAL, NEAR[:, None])
    assert error.compute(state) == pytest.approx(np.abs(REAL - NEAR).mean(), rel=1e-5)


def test_no_rows_give_nan_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (classification.BinaryAUROC(), torchmetrics.MeanSquaredError(), BatchMean()):
            metric = adapted(source)
            state = metric.update(metric.empty(), np.zeros(0), np.zeros((0, 1)))
            assert math.isnan(metric.compute(metric.merge([state, metric.empty()])))
            assert math.isnan(metric.compute(metric.merge([])))


@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef`")
def test_the_users_object_is_not_changed_and_buffers_may_be_reused() -> None:
    theirs = torchmetrics.SpearmanCorrCoef()
    theirs.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
    before, metric = float(theirs.compute()), adapted(theirs)
    buffer = np.array([1.0, 2.0, 3.0])
    state = metric.update(metric.empty(), np.array([1.0, 2.0, 3.0]), buffer)
    buffer[:] = 0
    assert metric.compute(state) == pytest.approx(1.0, abs=1e-5)
    assert float(theirs.compute()) == before
    assert len(theirs.preds) == 1


def test_torchmetrics_does_not_synchronize_inside_a_process_group(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain = torchmetrics.MeanSquaredError(dist_sync_fn=refuse_sync)
        plain.update(torch.ones(2), torch.zeros(2))
        with pytest.raises(AssertionError, match="asked the process group"):
            plain.compute()
        for source in (plain, plain + 1.0, torchmetrics.PearsonCorrCoef(dist_sync_fn=refuse_sync)):
            metric = adapted(source)
            assert math.isfinite(metric.compute(metric.update(metric.empty(), REAL, NEAR)))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("source", "target", "output", "words"),
    [
        (classification.MulticlassAccuracy(4, average=None), FOUR, SHARES, "returned 4 numbers; .* average='macro'"),
        (classification.BinaryROC(thresholds=5), TWO, CHANCES, "returned a tuple"),
        (torchmetrics.MinMaxMetric(torchmetrics.MeanSquaredError()), REAL, NEAR, "returned a dict"),
    ],
)
def test_a_result_that_is_not_one_number_is_rejected(source: Any, target: Any, output: Any, words: str) -> None:
    metric = adapted(source)
    state = metric.update(metric.empty(), target, output)
    with pytest.raises(DataError, match=words):
        metric.compute(state)


@pytest.mark.parametrize(
    ("source", "target", "output", "words"),
    [
        (torchmetrics.MeanSquaredError(), REAL[:3], NEAR[:2], "3 rows of targets and 2 rows"),
        (torchmetrics.MeanSquaredError(), REAL[:3], SHARES[:3], r"shape \(3,\) .* shape \(3, 4\)"),
        (torchmetrics.MeanSquaredError(), REAL, {"a": NEAR}, "outputs and received a dict"),
        (torchmetrics.MeanSquaredError(), REAL, (NEAR, NEAR), "outputs and received a tuple"),
        (torchmetrics.MeanSquaredError(), np.array(["a"]), np.zeros(1), "targets and received a <U1"),
        (classification.BinaryAccuracy(), CHANCES, CHANCES, "BinaryAccuracy does not accept targets"),
    ],
)
def test_arrays_that_do_not_fit_are_rejected(source: Any, target: Any, output: Any, words: str) -> None:
    metric = adapted(source)
    with pytest.raises(DataError, match=words):
        metric.update(metric.empty(), target, output)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (torchmetrics.Accuracy, r"metrics=Accuracy cannot be created .* metrics=Accuracy\(...\)"),
        (classification.MulticlassAccuracy, "metrics=MulticlassAccuracy cannot be created"),
        (torchmetrics.MeanMetric(), r"MeanMetric: its update takes \(value, weight\)"),
        (torchmetrics.SumMetric, "SumMetric: its update takes"),
        (RetrievalMAP(), r"takes \(preds, target, indexes\)"),
        (torchmetrics.MetricCollection([torchmetrics.SumMetric()]), "SumMetric"),
    ],
)
def test_metrics_without_target_and_output_are_rejected(source: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        adapt(source)


def test_other_objects_are_ignored_without_importing_torchmetrics() -> None:
    code = (
        "import sys; from orca.backends.torch.metrics import adapt; from orca.metrics import Accuracy; "
        "assert [adapt(x) for x in ('acc', Accuracy, Accuracy(), len, 7, None, {})] == [None] * 7; "
        "assert 'torchmetrics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
