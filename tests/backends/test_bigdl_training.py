"""BigDL layers on several workers: the weights are those of one process, whatever the criterion and the strategy."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from orca import Estimator, XShards
from orca.bigdl.nn.criterion import (
    ClassNLLCriterion,
    CrossEntropyCriterion,
    L1Cost,
    MSECriterion,
    ParallelCriterion,
    TimeDistributedCriterion,
)
from orca.bigdl.nn.layer import (
    ActivityRegularization,
    ConcatTable,
    Dropout,
    L1Penalty,
    Linear,
    LogSoftMax,
    Model,
    ReLU,
    Sequential,
    Tanh,
    TimeDistributed,
)
from orca.bigdl.optim.optimizer import (
    SGD,
    Adam,
    L1L2Regularizer,
    L2Regularizer,
    Loss,
    MaxIteration,
    MinLoss,
    Optimizer,
    Plateau,
    Poly,
    Top1Accuracy,
)
from orca.bigdl.util.common import RNG
from orca.callbacks import Callback
from orca.context import Context
from orca.errors import ArgumentError, DataError

ROWS = 37
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 6)).astype("f4")
CLASSES = (1 + np.argmax(X[:, :3] + 0.1 * rng.normal(size=(ROWS, 3)), axis=1)).astype("f4")
VALUES = (X[:, :2] * 2 + 1).astype("f4")
BACKENDS = ["torch_distributed", pytest.param("horovod", marks=pytest.mark.horovod), "parameter_server"]


def uneven(x, y):
    """Shards of different sizes, one of them empty."""
    edges = [0, 5, 5, 20, ROWS]
    return XShards.from_shards([{"x": x[a:b], "y": y[a:b]} for a, b in itertools.pairwise(edges)])


def classifier(regularizer=None, penalty=None):
    RNG().set_seed(1)
    model = Sequential().add(Linear(6, 8, wRegularizer=regularizer, bRegularizer=regularizer)).add(Tanh())
    if penalty is not None:
        model.add(penalty)
    return model.add(Linear(8, 3)).add(LogSoftMax())


def regression():
    RNG().set_seed(1)
    return Sequential().add(Linear(6, 8)).add(ReLU()).add(Linear(8, 2))


def padded():
    labels = CLASSES.copy()
    labels[[0, 1, 2, 3, 4, 11, 30]] = -1  # a whole shard of padding
    return labels


WEIGHTS = np.array([0.2, 3.0, 1.0], "f4")
CASES = {
    "class weights": (classifier, ClassNLLCriterion(WEIGHTS), CLASSES, SGD(0.1), {}),
    "padded labels": (classifier, ClassNLLCriterion(), padded(), Adam(0.01), {}),
    "padded labels and class weights": (classifier, ClassNLLCriterion(WEIGHTS), padded(), SGD(0.1), {}),
    "sum over rows": (classifier, ClassNLLCriterion(size_average=False), CLASSES, SGD(0.005, momentum=0.9), {}),
    "weighted sum": (classifier, ClassNLLCriterion(WEIGHTS, size_average=False), padded(), SGD(0.005), {}),
    "cross entropy": (classifier, CrossEntropyCriterion(), CLASSES, Adam(0.01), {}),
    "l1 cost": (regression, L1Cost(), VALUES, SGD(0.01), {}),
    "l2 with clipping": (
        lambda: classifier(L2Regularizer(0.5)), ClassNLLCriterion(), CLASSES, SGD(0.3), {"clip_norm": 0.3},
    ),
    "l1 and l2 with constant clipping": (
        lambda: classifier(L1L2Regularizer(0.1, 0.1)), ClassNLLCriterion(), CLASSES, SGD(0.3),
        {"clip_value": (-0.05, 0.02)},
    ),
    "penalties on activations": (
        lambda: classifier(penalty=Sequential().add(L1Penalty(0.02)).add(ActivityRegularization(0.0, 0.01))),
        ClassNLLCriterion(), CLASSES, SGD(0.1), {},
    ),
    "mean penalty": (lambda: classifier(penalty=L1Penalty(5.0, True)), ClassNLLCriterion(), CLASSES, SGD(0.1), {}),
    "accumulated": (classifier, ClassNLLCriterion(size_average=False), CLASSES, SGD(0.005), {"accumulate": 2}),
    "poly": (regression, MSECriterion(), VALUES, SGD(0.1, leaningrate_schedule=Poly(0.5, 10)), {}),
    "plateau": (
        regression, MSECriterion(), VALUES,
        SGD(0.2, leaningrate_schedule=Plateau("score", factor=0.5, patience=0, epsilon=5.0)),
        {"validation_data": (X, VALUES)},
    ),
}  # fmt: skip
"""Model, criterion, labels, optim method and arguments of fit."""


def trained(case, workers, backend="parameter_server", **more):
    make, criterion, labels, method, arguments = CASES[case]
    metrics = [Loss(criterion)] if "validation_data" in arguments else None
    est = Estimator.from_bigdl(
        model=make(), loss=criterion, optimizer=method, workers=workers, backend=backend, metrics=metrics, seed=5
    )
    history = est.fit(uneven(X, labels), epochs=4, batch_size=8, **arguments, **more)
    return est, history


_alone = {}


def alone(case):
    if case not in _alone:
        _alone[case] = trained(case, 1)
    return _alone[case]


def compare(one, other, case=""):
    for a, b in zip(one.get_model().get_weights(), other.get_model().get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-6, err_msg=case)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_and_three_workers_equal_one_process(local: Context, backend):
    # In one test, so that the ranks stay warm.
    for case in CASES:
        one, history = alone(case)
        for workers in (2, 3) if backend != "horovod" else (3,):
            est, other = trained(case, workers, backend)
            compare(one, est, case)
            np.testing.assert_allclose(other["loss"], history["loss"], rtol=1e-5, err_msg=case)
            assert other["lr"] == history["lr"], case


def test_sharded_weights_and_asynchronous_servers_train_as_far_as_they_can(local: Context):
    one, _ = alone("l2 with clipping")
    make, criterion, labels, method, arguments = CASES["l2 with clipping"]
    sharded = Estimator.from_bigdl(
        model=make(), loss=criterion, optimizer=method, workers=2, backend="torch_distributed", sharded=True, seed=5
    )
    sharded.fit(uneven(X, labels), epochs=4, batch_size=8, **arguments)
    compare(one, sharded)
    parts = {"model": make(), "loss": criterion, "workers": 2, "mode": "async", "seed": 5}
    history = Estimator.from_bigdl(optimizer=method, **parts).fit(X, labels, epochs=4, batch_size=8)
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(ArgumentError, match="constant learning rate"):
        Estimator.from_bigdl(optimizer=SGD(0.1, learningrate_decay=0.1), **parts).fit(X, labels)


def test_one_worker_equals_a_loop_of_torch(local: Context):
    import torch

    from orca.testing.cases import batches

    make, _, labels, _, _ = CASES["padded labels and class weights"]
    module = make().module
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    loss = torch.nn.NLLLoss(torch.from_numpy(WEIGHTS), ignore_index=-2)
    for x, y in batches(X, labels, epochs=4, batch_size=8, seed=5):
        optimizer.zero_grad()
        loss(module(torch.from_numpy(x)), torch.from_numpy(y).long() - 1).backward()
        optimizer.step()
    est, _ = alone("padded labels and class weights")
    for ours, theirs in zip(est.get_model().get_weights(), module.parameters(), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)


def test_the_rate_of_a_plateau_falls_in_the_exactness_case(local: Context):
    _, history = alone("plateau")
    assert history["lr"][0] == 0.2
    assert history["lr"][-1] < 0.2


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_max_iteration_ends_within_an_epoch_and_the_next_call_continues(local: Context, workers):
    def optimized(ends, count):
        model = regression()
        optimizer = Optimizer(model, (X, VALUES), MSECriterion(), MaxIteration(3), 8, Adam(0.01), workers=count, seed=2)
        for end in ends:
            optimizer.set_end_when(MaxIteration(end)).optimize()
        return model.get_weights(), optimizer.estimator

    weights, est = optimized([3, 7], workers)
    assert (est.step, est.epoch) == (7, 2)  # five steps in an epoch
    for ours, expected in zip(weights, optimized([3, 7], 1)[0], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["torch_distributed", "parameter_server"])
def test_min_loss_ends_in_the_same_step_on_any_number_of_workers(local: Context, backend):
    def steps(workers):
        optimizer = Optimizer(
            regression(), (X, VALUES), MSECriterion(), MinLoss(2.0), 8, SGD(0.05), workers=workers, seed=2,
            backend=backend,
        )  # fmt: skip
        optimizer.optimize()
        return optimizer.estimator.step

    expected = steps(1)
    assert expected % 5, "the case should end within an epoch"
    assert steps(2) == steps(3) == expected


class Killer(Callback):
    """Kills a rank once, in the second epoch."""

    def __init__(self, path):
        self.path = path

    def after_batch(self, run):
        if run.rank == 1 and run.step == 7 and not Path(self.path).exists():
            Path(self.path).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_rank_resumes_bit_for_bit(local: Context, tmp_path, backend):
    def fit(**more):
        RNG().set_seed(1)
        model = Sequential().add(Linear(6, 8, wRegularizer=L2Regularizer(0.01))).add(Tanh()).add(Dropout(0.3))
        model.add(Linear(8, 3)).add(LogSoftMax())
        method = SGD(0.2, momentum=0.9, leaningrate_schedule=Plateau("Loss", factor=0.5, patience=0, epsilon=5.0))
        est = Estimator.from_bigdl(
            model=model, loss=ClassNLLCriterion(WEIGHTS), optimizer=method, workers=3, backend=backend, seed=5
        )
        history = est.fit(uneven(X, padded()), epochs=4, batch_size=8, clip_norm=1.0, **more)
        return est.get_model().get_weights(), history["lr"]

    expected, rates = fit()
    assert rates[-1] < rates[0]
    killer = Killer(str(tmp_path / "killed"))
    resumed, same = fit(callbacks=killer, max_failures=1, checkpoint_trigger=2)
    assert (tmp_path / "killed").exists()
    assert same == rates
    for ours, one in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(ours, one)


def test_tables_of_inputs_and_outputs_train_on_two_workers(local: Context):
    def fit(workers):
        RNG().set_seed(3)
        left, right = Linear(4, 3)(), Linear(2, 3)()
        both = ConcatTable().add(Linear(6, 2)).add(Sequential().add(Linear(6, 3)).add(LogSoftMax()))
        from orca.bigdl.nn.layer import JoinTable

        model = Model([left, right], [both(JoinTable(2, 2)([left, right]))])
        criterion = ParallelCriterion().add(MSECriterion(), 0.5).add(ClassNLLCriterion(), 1.0)
        est = Estimator.from_bigdl(model=model, loss=criterion, optimizer=SGD(0.1), workers=workers, seed=1)
        rows = {"x": [X[:, :4], X[:, 4:]], "y": [VALUES, CLASSES]}
        est.fit(rows, epochs=2, batch_size=10)
        return est, rows

    (one, rows), (two, _) = fit(1), fit(2)
    compare(one, two)
    values, scores = two.predict({"x": rows["x"]}) if False else two.get_model().forward(rows["x"])
    assert values.shape == (ROWS, 2)
    assert scores.shape == (ROWS, 3)


def test_time_distributed_criterion_trains_on_two_workers(local: Context):
    steps = np.stack([X, X[::-1], 2 * X], axis=1)
    labels = np.stack([CLASSES, CLASSES[::-1], CLASSES], axis=1)

    def fit(workers):
        RNG().set_seed(3)
        model = TimeDistributed(Sequential().add(Linear(6, 3)).add(LogSoftMax()))
        criterion = TimeDistributedCriterion(ClassNLLCriterion(), True)
        est = Estimator.from_bigdl(
            model=Sequential().add(model), loss=criterion, optimizer=SGD(0.5), workers=workers, seed=1
        )
        est.fit(steps, labels, epochs=2, batch_size=10)
        return est

    compare(fit(1), fit(2))


@pytest.mark.parametrize("wrong", [0.0, 4.0])
def test_labels_outside_of_the_classes_are_refused_with_value_row_and_rule(local: Context, wrong):
    labels = CLASSES.copy()
    labels[23] = wrong
    message = rf"the class {wrong:.0f} in row 23; .*count from 1; expected 1 to 3"
    est = Estimator.from_bigdl(model=classifier(), loss=ClassNLLCriterion(), optimizer=SGD(0.1), workers=2)
    for data in ((X, labels), {"x": X, "y": labels[:, None]}):
        with pytest.raises(DataError, match=message):
            est.fit(data, batch_size=8)
        with pytest.raises(DataError, match=message):
            est.evaluate(data)
    assert est.step == 0


def test_labels_count_from_one_in_metrics_and_predicted_classes(local: Context):
    est = Estimator.from_bigdl(
        model=classifier(), loss=ClassNLLCriterion(), optimizer=Adam(0.05), metrics=["accuracy", Top1Accuracy()],
        workers=2, seed=1,
    )  # fmt: skip
    est.fit(X, CLASSES, epochs=10, batch_size=8)
    scores = est.evaluate(X, CLASSES)
    predicted = est.get_model().predict_class(X)
    assert set(predicted) <= {1, 2, 3}
    assert scores["accuracy"] == scores["Top1Accuracy"] == np.mean(predicted == CLASSES)
    assert scores["accuracy"] > 0.8


def test_wrong_rows_are_refused_before_anything_starts(local: Context):
    est = Estimator.from_bigdl(model=regression(), loss=MSECriterion(), optimizer=SGD(0.1))
    with pytest.raises(DataError, match=r"received shape \(2, 5\)"):
        est.fit(X[:, :5], VALUES)
    with pytest.raises(DataError, match=r"received shape \(2, 6, 1\)"):
        est.fit(X[:, :, None], VALUES)
    with pytest.raises(DataError, match="equal shapes"):
        est.fit(X, rng.normal(size=(ROWS, 3)).astype("f4"))
    with pytest.raises(DataError, match=r"received shape \(2, 5\)"):
        est.predict(X[:, :5])
