"""The Optimizer of BigDL layers: triggers, validation, summaries, checkpoints, and methods of layers on data."""

from __future__ import annotations

import numpy as np
import pytest

from orca import Estimator, XShards
from orca.bigdl.nn.criterion import AbsCriterion, ClassNLLCriterion, MSECriterion
from orca.bigdl.nn.layer import Linear, LogSoftMax, Model, Sequential
from orca.bigdl.optim.optimizer import (
    MAE,
    NDCG,
    SGD,
    Adam,
    EveryEpoch,
    HitRatio,
    LocalOptimizer,
    Loss,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MeanAveragePrecision,
    MinLoss,
    Optimizer,
    SeveralIteration,
    Top1Accuracy,
    Top5Accuracy,
    TrainSummary,
    TreeNNAccuracy,
    TriggerAnd,
    TriggerOr,
    ValidationSummary,
)
from orca.bigdl.util.common import Sample
from orca.context import Context
from orca.errors import ArgumentError, DataError
from orca.triggers import Progress

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype("f4")
Y = (X @ rng.normal(size=(4, 2)) + 1).astype("f4")


def optimizer(end=None, method=None, **more):
    model = Sequential().add(Linear(4, 2).set_weights([np.ones((2, 4)), np.zeros(2)]))
    arguments = {"criterion": MSECriterion(), "batch_size": 10, "workers": 1, "seed": 1, **more}
    return Optimizer(model, (X, Y), end_trigger=end or MaxEpoch(2), optim_method=method or SGD(0.05), **arguments)


def test_the_trained_weights_are_in_the_users_layer(local: Context):
    one = optimizer()
    layer = one.model
    before = layer.get_weights()
    assert one.optimize() is layer
    assert one.estimator.step == 8
    np.testing.assert_array_equal(layer.get_weights()[0], one.estimator.get_model().get_weights()[0])
    assert not np.allclose(layer.get_weights()[0], before[0])
    one.optimize()
    assert one.estimator.step == 8, "the trigger has ended the training"
    one.set_end_when(MaxEpoch(3)).optimize()
    assert one.estimator.step == 12


@pytest.mark.parametrize(
    ("end", "steps"),
    [
        (MaxEpoch(2), 8),
        (MaxIteration(5), 5),
        (TriggerOr(MaxEpoch(3), MaxIteration(7)), 7),
        (TriggerAnd(MaxEpoch(1), MaxIteration(6)), 6),
        (TriggerOr(MaxScore(-1.0), MaxIteration(30)), 4),
        (TriggerOr(MinLoss(1e9), MaxIteration(30)), 1),
    ],
    ids=["epochs", "iterations", "or", "and", "score", "loss"],
)
def test_triggers_end_the_training(local: Context, end, steps):
    one = optimizer(end).set_validation(10, (X, Y), EveryEpoch(), [MAE()])
    one.optimize()
    assert one.estimator.step == steps


def test_every_epoch_validates_also_if_an_epoch_is_one_step(local: Context, tmp_path):
    summary = ValidationSummary(str(tmp_path), "app")
    one = optimizer(MaxEpoch(5), batch_size=40).set_validation(40, (X, Y), EveryEpoch(), [MAE()])
    one.set_val_summary(summary).optimize()
    assert [step for step, _, _ in summary.read_scalar("MAE")] == [1, 2, 3, 4, 5]


def test_validation_within_epochs_is_reported_for_its_step(local: Context, tmp_path):
    summary = ValidationSummary(str(tmp_path), "app")
    one = optimizer(MaxIteration(7)).set_validation(10, (X, Y), SeveralIteration(3), [MAE(), Loss(MSECriterion())])
    one.set_val_summary(summary).optimize()
    rows = summary.read_scalar("MAE")
    assert [step for step, _, _ in rows] == [3, 6, 7]
    alone = optimizer(MaxIteration(3))
    alone.optimize()
    expected = np.abs(alone.model.forward(X) - Y).mean()
    assert rows[0][1] == pytest.approx(expected, rel=1e-5)


def test_summaries_have_a_value_for_each_step_that_tensorboard_reads(local: Context, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train, validation = TrainSummary(str(tmp_path), "app"), ValidationSummary(str(tmp_path), "app")
    train.set_summary_trigger("LearningRate", SeveralIteration(1))
    one = optimizer(method=SGD(0.1, learningrate_decay=1.0)).set_validation(10, (X, Y), EveryEpoch(), [MAE()])
    one.set_train_summary(train).set_val_summary(validation).optimize()
    assert [step for step, _, _ in train.read_scalar("Loss")] == list(range(1, 9))
    rates = [value for _, value, _ in train.read_scalar("LearningRate")]
    assert rates == pytest.approx([0.1 / (1 + step) for step in range(8)])
    assert len(train.read_scalar("Throughput")) == 8
    for split, tags in (("train", {"Loss", "LearningRate", "Throughput"}), ("validation", {"Loss", "MAE"})):
        events = EventAccumulator(str(tmp_path / "app" / split))
        events.Reload()
        assert set(events.Tags()["scalars"]) == tags
    with pytest.raises(ArgumentError, match="Histograms"):
        train.set_summary_trigger("Parameters", EveryEpoch())
    with pytest.raises(ArgumentError, match="ValidationSummary"):
        one.set_val_summary(train)


def test_checkpoints_are_written_and_continue(local: Context, tmp_path):
    one = optimizer().set_checkpoint(SeveralIteration(3), str(tmp_path / "checkpoints"))
    one.optimize()
    est = Estimator.from_bigdl(model=one.model, loss=MSECriterion(), optimizer=SGD(0.05))
    est.load_orca_checkpoint(str(tmp_path / "checkpoints"))
    assert est.step == 6


def test_an_estimator_is_saved_as_a_layer_and_loaded(local: Context, tmp_path):
    one = optimizer()
    one.optimize()
    path = str(tmp_path / "model.bigdl")
    one.estimator.save(path)
    np.testing.assert_allclose(Model.loadModel(path).forward(X), one.model.forward(X))
    fresh = Estimator.from_bigdl(model=Sequential().add(Linear(4, 2)), loss=MSECriterion()).load(path)
    np.testing.assert_array_equal(fresh.get_model().get_weights()[0], one.model.get_weights()[0])
    with pytest.raises(DataError, match="other weights"):
        Estimator.from_bigdl(model=Sequential().add(Linear(4, 3))).load(path)


def test_clipping_limits_the_steps_until_it_is_disabled(local: Context):
    def moved(one):
        before = one.model.get_weights()
        one.set_end_when(MaxIteration(one.estimator.step + 1)).optimize()
        return np.concatenate([(a - b).ravel() for a, b in zip(one.model.get_weights(), before, strict=True)])

    one = optimizer(method=SGD(1.0))
    assert np.linalg.norm(moved(one.set_gradclip_l2norm(0.25))) == pytest.approx(0.25, rel=1e-4)
    assert np.abs(moved(one.disable_gradclip().set_gradclip_const(-0.01, 0.01))).max() <= 0.010001
    assert np.abs(moved(one.disable_gradclip())).max() > 0.1


def test_create_chooses_by_the_kind_of_data(local: Context):
    model = Sequential().add(Linear(4, 2))
    one = Optimizer.create(model, (X, Y), MSECriterion(), batch_size=20, optim_method=Adam(0.1), cores=2)
    assert isinstance(one, LocalOptimizer)
    one.set_validation(20, X, Y, EveryEpoch(), [MAE()])
    one.optimize()
    assert (one.estimator.step, one.estimator.workers) == (2, 2)
    samples = [Sample.from_ndarray(x, y) for x, y in zip(X, Y, strict=True)]
    for data in (XShards.partition({"x": X, "y": Y}), samples):
        other = Optimizer.create(Sequential().add(Linear(4, 2)), data, MSECriterion(), batch_size=20, cores=1)
        other.set_criterion(AbsCriterion()).set_traindata(data, 10)
        other.prepare_input()
        other.optimize()
        assert other.estimator.step == 4


def test_layers_predict_and_are_evaluated_on_arrays_and_samples(local: Context):
    model = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    expected = model.forward(X)
    labels = expected.argmax(axis=1) + 1.0
    labels[:10] = 1 + labels[:10] % 3
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-6)
    np.testing.assert_allclose(model.predict_local(X, 7), expected, atol=1e-6)
    np.testing.assert_array_equal(model.predict_class(X), expected.argmax(axis=1) + 1)
    samples = [Sample.from_ndarray(x, y) for x, y in zip(X, labels, strict=True)]
    for rows in ((X, labels), samples):
        accuracy, loss = model.evaluate(rows, 16, [Top1Accuracy(), Loss(ClassNLLCriterion())])
        assert (accuracy.result, accuracy.total_num) == (0.75, 40)
        assert loss.result == pytest.approx(ClassNLLCriterion().forward(expected, labels), rel=1e-5)
    assert str(accuracy) == "Evaluated result: 0.75, total_num: 40, method: Top1Accuracy"
    assert model.evaluate() is model


def value_of(method, target, output, parts=3):
    """The result over rows in several parts, as ranks have them."""
    cut = list(zip(np.array_split(np.asarray(target), parts), np.array_split(np.asarray(output), parts), strict=True))
    return method.compute(method.merge([method.update(method.empty(), *part) for part in cut]))


def test_validation_methods_are_exact_over_parts_of_rows():
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])
    assert value_of(Top1Accuracy(), [2, 1, 3, 1], scores) == 0.75
    assert value_of(Top1Accuracy(), [[1], [0], [1]], [[0.9], [0.5], [0.5]]) == pytest.approx(2 / 3)
    many = np.tile(np.arange(10.0), (4, 1))
    assert value_of(Top5Accuracy(), [10, 6, 5, 1], many) == 0.5
    assert value_of(MAE(), [[1.0], [2.0]], [[1.5], [1.5]], 2) == 0.5
    trees = np.zeros((3, 2, 2))
    trees[:, 0, 1] = 1
    assert value_of(TreeNNAccuracy(), [[2, 1], [2, 2], [1, 1]], trees) == pytest.approx(2 / 3)
    labels, outputs = np.tile([0, 0, 1, 0], 2), np.array([0.9, 0.1, 0.5, 0.2, 0.9, 0.8, 0.1, 0.2])
    assert value_of(HitRatio(k=2, neg_num=3), labels, outputs) == 0.5
    assert value_of(NDCG(k=2, neg_num=3), labels, outputs) == pytest.approx(np.log(2) / np.log(3) / 2)
    precision = MeanAveragePrecision(k=3, classes=2)
    value = value_of(precision, [0, 1, 0, 1], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.1, 0.9]])
    assert precision.name == "MAP@3"
    assert value == pytest.approx(np.mean([(1 + 2 / 3) / 2, (1 + 2 / 3) / 2]))


def test_triggers_know_when_they_are_due():
    both = TriggerOr(EveryEpoch(2), SeveralIteration(5))
    assert [both.after_epoch(epoch) for epoch in (1, 2)] == [False, True]
    assert both.after_step(10)
    assert not TriggerAnd(EveryEpoch(), SeveralIteration(5)).after_step(5)
    assert MinLoss(0.5).ends(Progress(0, 3, loss=0.4))
    assert not MaxScore(0.5).ends(Progress(1, 3))
    for make in (lambda: MaxEpoch(0), lambda: MaxIteration(1.5), lambda: TriggerOr(MaxEpoch(1), 3)):
        with pytest.raises(ArgumentError):
            make()


def test_wrong_arguments_are_refused_before_the_training(local: Context):
    with pytest.raises(ArgumentError, match="end_trigger"):
        optimizer(end=3)
    with pytest.raises(ArgumentError, match="loss="):
        optimizer(criterion="mse")
    with pytest.raises(ArgumentError, match="val_method"):
        optimizer().set_validation(10, (X, Y), EveryEpoch(), ["accuracy"])
    with pytest.raises(ArgumentError, match="MaxScore needs a validation method"):
        optimizer(end=TriggerOr(MaxScore(0.5), MaxEpoch(2))).optimize()
    with pytest.raises(ArgumentError, match="checkpoint_trigger"):
        optimizer().set_checkpoint(3, "folder")
    with pytest.raises(ArgumentError, match="optimizer="):
        optimizer(method="adam")
