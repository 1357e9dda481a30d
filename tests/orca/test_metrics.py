"""Metrics equal scikit-learn's on all rows, however the rows are split, and names resolve or say why not."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from orca.errors import ArgumentError, DataError
from orca.metrics import R2, Accuracy, ClassScore, FunctionMetric, MeanError, Metric, State, resolve, roc_auc

EXACT = 1e-9
data_seeds = st.integers(0, 2**32 - 1)
row_counts = st.integers(2, 120)
cut_lists = st.lists(st.integers(0, 120), max_size=8)


def one(name: str) -> Metric:
    (metric,) = resolve(name)
    return metric


def in_pieces(metric: Metric, target: Any, output: Any, cuts: list[int], rng: np.random.Generator) -> float:
    """Score the rows in pieces (some empty), on several ranks, with pickled states, in a random order."""
    bounds = sorted({0, len(target)} | {min(cut, len(target)) for cut in cuts})
    pieces = [slice(a, b) for a, b in itertools.pairwise(bounds)] + [slice(0, 0)] * 2
    rng.shuffle(pieces)  # type: ignore[arg-type]
    ranks: list[State] = [metric.empty() for _ in range(3)]
    for number, piece in enumerate(pieces):
        ranks[number % 3] = metric.update(ranks[number % 3], target[piece], output[piece])
    pickled = pickle.loads(pickle.dumps([metric.empty(), *ranks]))
    before = pickle.dumps(pickled)
    value = pickle.loads(pickle.dumps(metric)).compute(metric.merge([pickled[0], metric.merge(pickled[1:])]))
    assert pickle.dumps(pickled) == before, "merge changed its input"
    return float(value)


def agrees(metric: Metric, target: Any, output: Any, cuts: list[int], expected: float, seed: int) -> None:
    whole = metric.compute(metric.update(metric.empty(), target, output))
    assert whole == pytest.approx(expected, rel=EXACT, abs=EXACT, nan_ok=True)
    value = in_pieces(metric, target, output, cuts, np.random.default_rng(seed))
    assert value == pytest.approx(expected, rel=EXACT, abs=EXACT, nan_ok=True)


def classification(seed: int, rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.ones(classes), size=rows)
    return rng.integers(0, classes, rows), scores


@settings(deadline=None)
@given(data_seeds, row_counts, cut_lists, st.integers(2, 12))
def test_class_metrics_match_scikit_learn_however_rows_are_split(
    seed: int, rows: int, cuts: list[int], classes: int
) -> None:
    target, scores = classification(seed, rows, classes)
    predicted = scores.argmax(axis=1)
    agrees(one("accuracy"), target, scores, cuts, sk.accuracy_score(target, predicted), seed)
    one_hot = np.eye(classes, dtype=np.float32)[target]
    agrees(one("accuracy"), one_hot, scores, cuts, sk.accuracy_score(target, predicted), seed)
    for name, score in {
        "precision": sk.precision_score,
        "recall": sk.recall_score,
        "f1": sk.f1_score,
    }.items():
        for average in ("macro", "micro"):
            expected = score(target, predicted, average=average, zero_division=0)
            agrees(one(f"{name}_{average}"), target, scores, cuts, expected, seed)
    k = min(5, classes - 1)
    top = sk.top_k_accuracy_score(target, scores, k=k, labels=range(classes)) if classes > 2 else None
    if top is not None:
        agrees(one(f"top{k}"), target, scores, cuts, top, seed)
    if classes > 2 and len(set(target)) == classes:
        expected = sk.roc_auc_score(target, scores, multi_class="ovr", average="macro")
        agrees(one("auc"), target, scores, cuts, expected, seed)
        agrees(one("auc"), one_hot, scores, cuts, expected, seed)


@settings(deadline=None)
@given(data_seeds, row_counts, cut_lists, st.integers(1, 3), st.sampled_from([0.5, 0.3]))
def test_binary_metrics_match_scikit_learn_with_ties(
    seed: int, rows: int, cuts: list[int], digits: int, threshold: float
) -> None:
    rng = np.random.default_rng(seed)
    target, scores = rng.integers(0, 2, rows), rng.random(rows).round(digits)
    predicted = scores > threshold
    for output in (scores, scores[:, None], scores.astype(np.float32)[:, None].astype(np.float64)):
        output_predicted = output.reshape(-1) > threshold
        expected = sk.accuracy_score(target, output_predicted)
        agrees(Accuracy(threshold=threshold), target, output, cuts, expected, seed)
        agrees(Accuracy(threshold=threshold), target[:, None].astype(float), output, cuts, expected, seed)
    for name, weight, score in [
        ("precision", 1.0, sk.precision_score),
        ("recall", 0.0, sk.recall_score),
        ("f1", 0.5, sk.f1_score),
    ]:
        metric = ClassScore(name, weight, threshold=threshold)
        agrees(metric, target, scores, cuts, score(target, predicted, zero_division=0), seed)
    area = sk.roc_auc_score(target, scores) if 0 < target.sum() < rows else math.nan
    agrees(one("auc"), target, scores, cuts, area, seed)
    agrees(one("auc"), target, np.stack([1 - scores, scores], axis=1), cuts, area, seed)


@settings(deadline=None)
@given(data_seeds, row_counts, cut_lists, st.integers(0, 3), st.sampled_from([0.0, 1e6]))
def test_regression_metrics_match_scikit_learn_however_rows_are_split(
    seed: int, rows: int, cuts: list[int], columns: int, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    shape = (rows, columns) if columns else (rows,)
    target = rng.normal(size=shape) + offset
    output = target + rng.normal(size=shape)
    agrees(one("mae"), target, output, cuts, sk.mean_absolute_error(target, output), seed)
    agrees(one("mse"), target, output, cuts, sk.mean_squared_error(target, output), seed)
    agrees(one("rmse"), target, output, cuts, sk.mean_squared_error(target, output) ** 0.5, seed)
    agrees(one("r2"), target, output, cuts, sk.r2_score(target, output), seed)


@settings(deadline=None)
@given(data_seeds, row_counts, cut_lists)
def test_function_metric_sees_every_row_once(seed: int, rows: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    target, output = rng.normal(size=rows), rng.normal(size=rows)
    (metric,) = resolve(sk.median_absolute_error)
    agrees(metric, target, output, cuts, sk.median_absolute_error(target, output), seed)


@settings(deadline=None)
@given(data_seeds, row_counts, cut_lists)
def test_auc_of_several_labels_per_row_is_the_mean_over_columns(seed: int, rows: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    target, logits = rng.integers(0, 2, (rows + 2, 3)), rng.normal(size=(rows + 2, 3))
    target[0], target[1] = 0, 1
    agrees(one("auc"), target, logits, cuts, sk.roc_auc_score(target, logits, average="macro"), seed)


@pytest.mark.parametrize("classes", [2, 4])
def test_auc_of_logits_equals_auc_of_probabilities(classes: int) -> None:
    rng = np.random.default_rng(0)
    logits, target = 3 * rng.normal(size=(200, classes)), rng.integers(0, classes, 200)
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = sk.roc_auc_score(target, softmax[:, 1] if classes == 2 else softmax, multi_class="ovr")
    assert roc_auc(target, logits) == pytest.approx(expected, abs=EXACT)
    assert roc_auc(target, np.log(softmax)) == pytest.approx(expected, abs=EXACT)


def test_auc_skips_absent_classes_and_is_nan_for_one_class() -> None:
    scores = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]])
    assert roc_auc([0, 1, 0], scores) == 1.0
    assert math.isnan(roc_auc([1, 1, 1], scores))
    assert math.isnan(roc_auc([0, 1], [math.nan, 0.5]))


@pytest.mark.parametrize("class_axis", [-1, 1])
def test_accuracy_of_sequences_in_either_layout(class_axis: int) -> None:
    rng = np.random.default_rng(1)
    scores, target = rng.random((6, 5, 4)), rng.integers(0, 4, (6, 5))
    expected = float((scores.argmax(axis=-1) == target).mean())
    for output in (scores, np.moveaxis(scores, -1, 1)):
        for labels in (target, np.expand_dims(target, -1 if output is scores else 1)):
            metric = Accuracy(class_axis=class_axis)
            assert metric.compute(metric.update({}, labels, output)) == pytest.approx(expected)


def test_accuracy_of_images_in_the_torch_layout() -> None:
    rng = np.random.default_rng(2)
    scores, target = rng.random((3, 4, 7, 8)), rng.integers(0, 4, (3, 7, 8))
    assert Accuracy().compute(Accuracy().update({}, target, scores)) == (scores.argmax(axis=1) == target).mean()
    mask, sure = target[:, None] > 1, rng.random((3, 1, 7, 8))
    assert Accuracy().compute(Accuracy().update({}, mask, sure)) == ((sure > 0.5) == mask).mean()


def test_class_axis_decides_for_a_square_output() -> None:
    scores, target = (
        np.random.default_rng(3).random((5, 4, 4)),
        np.random.default_rng(4).integers(0, 4, (5, 4)),
    )
    for axis in (-1, 1):
        (metric,) = resolve("acc", class_axis=axis)
        assert metric.compute(metric.update({}, target, scores)) == (scores.argmax(axis=axis) == target).mean()


def test_binary_accuracy_decides_per_element_and_integers_are_decisions() -> None:
    target, output = np.array([[1, 0, 1], [1, 1, 0]]), np.array([[0.9, 0.2, 0.1], [0.8, 0.4, 0.3]])
    metric = one("BinaryAccuracy")
    assert metric.compute(metric.update({}, target, output)) == pytest.approx(4 / 6)
    assert Accuracy().compute(Accuracy().update({}, [3, 1, 2], np.array([3, 1, 0]))) == pytest.approx(2 / 3)


def test_ignored_class_is_not_a_row() -> None:
    metric = Accuracy(ignore_class=-100)
    state = metric.update({}, [[0, -100], [1, 1]], np.array([[[0.9, 0.1]] * 2, [[0.2, 0.8], [0.7, 0.3]]]))
    assert state == {"sum": 2, "count": 3}


def test_top1_equals_accuracy_on_ties_and_nan_scores_are_not_correct() -> None:
    scores, target = np.zeros((4, 3)), np.array([0, 1, 2, 0])
    assert Accuracy(top=1).compute(Accuracy(top=1).update({}, target, scores)) == 0.5
    top2 = Accuracy(top=2)
    assert top2.compute(top2.update({}, target, scores)) == 0.75
    assert top2.compute(top2.update({}, target, scores * math.nan)) == 0.0


def test_column_vectors_do_not_broadcast() -> None:
    target, output = np.arange(4.0), np.arange(4.0)[:, None]
    for name in ("mae", "mse", "rmse"):
        assert one(name).compute(one(name).update({}, target, output)) == 0.0
    assert R2().compute(R2().update({}, target, output)) == 1.0


def test_small_types_accumulate_in_float64() -> None:
    target, output = np.zeros(3000, np.uint8), np.full(3000, 200, np.uint8)
    assert MeanError("mse", power=2).compute(MeanError("mse", power=2).update({}, target, output)) == 40000.0
    half = np.full(70000, 0.25, np.float16)
    assert one("mae").compute(one("mae").update({}, np.zeros(70000, np.float16), half)) == 0.25


def test_r2_of_a_constant_column_follows_scikit_learn() -> None:
    constant = np.full(3, 0.1)
    for output, expected in ((constant, 1.0), (constant + 1, 0.0)):
        states = [R2().update({}, constant[i : i + 1], output[i : i + 1]) for i in range(3)]
        assert R2().compute(R2().merge(states)) == expected
    assert math.isnan(R2().compute(R2().update({}, [1.0], [1.0])))


def test_stored_arrays_survive_a_reused_buffer() -> None:
    buffer, metric = np.array([0.0, 1.0]), FunctionMetric(lambda target, output: output.sum(), "total")
    state = metric.update({}, buffer, buffer)
    buffer[:] = 9
    assert metric.compute(state) == 1.0


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 3)])
def test_no_rows_give_nan_without_a_warning(shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in [*resolve(ALL_NAMES), *resolve(sk.accuracy_score)]:
            assert math.isnan(metric.compute(metric.empty()))
            state = metric.update(metric.empty(), np.zeros(0), np.zeros(shape))
            assert math.isnan(metric.compute(metric.merge([state, metric.empty()])))
            assert math.isnan(metric.compute(metric.merge([])))


ALL_NAMES = [
    "accuracy", "binary_accuracy", "top5_accuracy", "mae", "mse", "rmse", "r2", "auc",
    "precision", "recall", "f1", "precision_macro", "recall_macro", "f1_macro",
    "precision_micro", "recall_micro", "f1_micro",
]  # fmt: skip


@pytest.mark.parametrize(
    ("given_name", "name"),
    [(name, name) for name in ALL_NAMES]
    + [
        ("acc", "accuracy"),
        ("Accuracy", "accuracy"),
        ("sparse_categorical_accuracy", "accuracy"),
        ("mean_absolute_error", "mae"),
        ("MeanSquaredError", "mse"),
        ("MAE", "mae"),
        ("roc_auc", "auc"),
        ("ROC-AUC", "auc"),
        ("AUROC", "auc"),
        ("f1_score", "f1"),
        ("r2_score", "r2"),
        ("top5", "top5_accuracy"),
        ("top5acc", "top5_accuracy"),
        ("Top5Accuracy", "top5_accuracy"),
        ("top_3_accuracy", "top3_accuracy"),
    ],
)
def test_names_and_aliases_resolve(given_name: str, name: str) -> None:
    assert [metric.name for metric in resolve(given_name)] == [name]


def test_every_form_of_specification_resolves() -> None:
    def spread(target: Any, output: Any) -> float:
        return float(np.ptp(output))

    partial: Callable[..., Any] = functools.partial(spread)
    assert resolve(None) == resolve([]) == resolve({}) == []
    assert resolve(Accuracy()) == resolve(Accuracy) == resolve("acc") == [Accuracy()]
    spec = ["acc", ("mae", spread), {"mine": "acc", "fn": lambda t, o: 0.0, "out": ["mse", "r2"]}]
    names = ["accuracy", "mae", "spread", "mine", "fn", "out_mse", "out_r2"]
    assert [metric.name for metric in resolve(spec)] == names
    assert [metric.name for metric in resolve(partial)] == ["spread"]
    assert Accuracy().name == "accuracy", "renaming makes a copy"


def test_adapt_translates_framework_objects_and_unknown_names_first() -> None:
    class Framework:
        def __call__(self) -> None: ...

    def adapt(item: object) -> Metric | None:
        return MeanError("hinge") if isinstance(item, Framework) or item == "hinge" else None

    assert [metric.name for metric in resolve([Framework(), "acc"], adapt)] == ["hinge", "accuracy"]
    assert [metric.name for metric in resolve({"a": "hinge"}, adapt)] == ["a"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("acuracy", ["metrics='acuracy'", "Did you mean 'accuracy'?", "rmse"]),
        (7, ["metrics=7", "Known: accuracy"]),
        (["acc", "accuracy"], ["'accuracy' occurs twice"]),
        ({"loss": "mse"}, ["'loss'"]),
        (lambda target, output: 0.0, ["has no name", "metrics={'my_name': ...}"]),
    ],
)
def test_an_unusable_specification_says_what_to_do(spec: object, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        resolve(spec)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "target", "output", "words"),
    [
        ("acc", [0, 1], np.zeros((3, 2)), "2 rows of targets and 3 rows"),
        ("acc", np.zeros((2, 3)), np.zeros((2, 5)), "do not match"),
        ("acc", [[1, 1], [0, 1]], np.zeros((2, 2)), "binary_accuracy"),
        ("acc", [0.2, 0.7], np.zeros(2), "class numbers"),
        ("acc", [1, 2, 3], np.zeros((3, 3)), "from 0"),
        ("top5", [-100, 0], np.zeros((2, 9)), "ignore_class"),
        ("f1", [0, 2], np.zeros((2, 3)), "_macro"),
        ("mae", np.zeros((2, 3)), np.zeros((2, 2)), "do not match"),
        ("mae", np.zeros((2, 3)), np.zeros((2,)), "do not match"),
    ],
)
def test_arrays_that_do_not_match_are_refused(name: str, target: Any, output: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        one(name).update({}, target, output)


@pytest.mark.parametrize(
    "function",
    [
        lambda pred, target: 10 * pred.sum() + target.sum(),
        lambda y_pred, y_true: 10 * y_pred.sum() + y_true.sum(),
        lambda output, label: 10 * output.sum() + label.sum(),
        lambda logits, y: 10 * logits.sum() + y.sum(),
        lambda a, target: 10 * a.sum() + target.sum(),
        lambda predicted_labels, labels: 10 * predicted_labels.sum() + labels.sum(),
        lambda target, output: target.sum() + 10 * output.sum(),
        lambda y_true, y_pred: y_true.sum() + 10 * y_pred.sum(),
        lambda a, b: a.sum() + 10 * b.sum(),
        lambda x, y: x.sum() + 10 * y.sum(),
        lambda labels, scores, weight=1: labels.sum() + 10 * scores.sum(),
        lambda *arrays: arrays[0].sum() + 10 * arrays[1].sum(),
    ],
)
def test_the_names_of_its_parameters_decide_what_a_function_receives(function: Any):
    [metric] = resolve({"mine": function})
    state = metric.update(metric.empty(), np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert metric.compute(cloudpickle.loads(cloudpickle.dumps(metric)).merge([state])) == 73


def test_functions_that_cannot_be_metrics_are_refused():
    for function, words in (
        (lambda pred, output: 0.0, r"\(pred, output\): both names mean the output"),
        (lambda target, label: 0.0, r"\(target, label\): both names mean the target"),
        (lambda target: 0.0, r"metrics= has the parameters \(target\)"),
        (lambda a, b, c: 0.0, r"metrics= has the parameters \(a, b, c\)"),
        (int, "metrics=<class 'int'> is not known"),
        (None, "metrics=None is not known"),
    ):
        with pytest.raises(ArgumentError, match=words):
            resolve({"mine": function})
    assert resolve(None) == []
