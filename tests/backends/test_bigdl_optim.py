"""Optim methods, schedules and regularizers: the weights that BigDL 2.4 itself has after some steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from orca import Estimator
from orca.bigdl.nn.criterion import MSECriterion
from orca.bigdl.nn.layer import Linear, Sequential
from orca.bigdl.optim import optimizer as names
from orca.bigdl.optim.optimizer import (
    LBFGS,
    SGD,
    Adam,
    AdamWeightDecay,
    L2Regularizer,
    OptimMethod,
    ParallelAdam,
    Plateau,
    Poly,
    SequentialSchedule,
    Warmup,
)
from orca.context import Context
from orca.errors import ArgumentError, DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "bigdl_optim.json").read_text())


def array(value):
    return np.array(value["data"], "f4").reshape(value["shape"])


X, Y = array(GOLDEN["x"]), array(GOLDEN["y"])


def model(regularizer=None):
    layer = Sequential().add(Linear(4, 3, wRegularizer=regularizer))
    return layer.set_weights([array(GOLDEN["weight"]), array(GOLDEN["bias"])])


def trained(method, steps=5, layer=None, **more):
    est = Estimator.from_bigdl(model=layer or model(), loss=MSECriterion(), optimizer=method, seed=0, **more)
    est.fit(X, Y, epochs=steps, batch_size=8)
    return est


def weights(est):
    return est.get_model().get_weights()


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_weights_after_the_steps_are_those_of_bigdl(local: Context, case):
    values = {name: getattr(names, name) for name in names.__all__}
    regularizer = eval(case["w_regularizer"], values) if case["w_regularizer"] else None
    est = trained(eval(case["optim_method"], values), case["steps"], model(regularizer))
    for ours, theirs in zip(weights(est), case["weights"], strict=True):
        np.testing.assert_allclose(ours, array(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["torch_distributed", "parameter_server"])
@pytest.mark.parametrize("method", [Adam(0.1), SGD(0.1, momentum=0.9, leaningrate_schedule=Poly(0.5, 6))])
def test_two_workers_update_as_one_does(local: Context, backend, method):
    for one, two in zip(weights(trained(method)), weights(trained(method, workers=2, backend=backend)), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-6)


def test_parallel_adam_is_adam(local: Context):
    for one, other in zip(weights(trained(Adam(0.1))), weights(trained(ParallelAdam(0.1))), strict=True):
        np.testing.assert_array_equal(one, other)


def test_adam_weight_decay_warms_up_and_falls_to_zero(local: Context):
    rate = AdamWeightDecay(0.1, warmup_portion=0.5, total=4).rate()
    assert [rate.at(step) for step in range(6)] == pytest.approx([0.0, 0.05, 0.05, 0.025, 0.0, 0.0])
    before, after = model().get_weights(), weights(trained(AdamWeightDecay(0.1, weight_decay=0.5), steps=1))
    gradient = 2 * (X @ before[0].T + before[1] - Y) / Y.size
    mean, square = 0.1 * gradient.T @ X, 0.001 * (gradient.T @ X) ** 2
    expected = before[0] - 0.1 * (mean / (np.sqrt(square) + 1e-6) + 0.5 * before[0])
    np.testing.assert_allclose(after[0], expected, atol=1e-6)


def test_a_sequence_of_schedules_sets_the_rate_of_each_step(local: Context):
    schedule = SequentialSchedule(1).add(Warmup(0.1), 2).add(Poly(1.0, 10), 8)
    rates = trained(SGD(0.1, leaningrate_schedule=schedule), steps=4).fit(X, Y, epochs=1, batch_size=8)["lr"]
    assert rates == pytest.approx([0.3 * (1 - 4 / 10)])


def test_plateau_lowers_the_rate_when_a_result_does_not_improve(local: Context):
    method = SGD(1e-9, leaningrate_schedule=Plateau("Loss", factor=0.5, patience=1))
    est = Estimator.from_bigdl(model=model(), loss=MSECriterion(), optimizer=method, seed=0)
    history = est.fit(X, Y, epochs=6, batch_size=8)
    assert history["lr"] == pytest.approx([1e-9, 1e-9, 1e-9, 5e-10, 2.5e-10, 1.25e-10])
    with pytest.raises(ArgumentError, match="give metrics="):
        trained(SGD(0.1, leaningrate_schedule=Plateau("score")))
    scored = SGD(0.1, leaningrate_schedule=Plateau("score", mode="max"))
    with pytest.raises(ArgumentError, match="val_MAE"):
        trained(scored, metrics=[names.MAE()])


def test_methods_by_layers_update_each_layer_in_its_own_way(local: Context):
    def network():
        first = Linear(4, 3).set_name("first").set_weights([array(GOLDEN["weight"]), array(GOLDEN["bias"])])
        second = Linear(3, 3).set_name("second").set_weights([np.eye(3), np.zeros(3)])
        return Sequential().set_name("all").add(first).add(second)

    both = {"first": SGD(0.1), "second": Adam(0.05)}
    for workers, backend in ((1, "parameter_server"), (2, "parameter_server"), (2, "torch_distributed")):
        est = trained(both, 1, network(), workers=workers, backend=backend)
        sgd, adam = trained(SGD(0.1), 1, network()), trained(Adam(0.05), 1, network())
        for place, expected in enumerate([*weights(sgd)[:2], *weights(adam)[2:]]):
            np.testing.assert_allclose(weights(est)[place], expected, atol=1e-6)
    for wrong, message in (
        ({"first": SGD()}, "no method for the layer 'second'"),
        ({"all": SGD(), "first": Adam()}, "two methods for the same weights"),
        ({"fist": SGD()}, "Did you mean 'first'"),
        ({"all": LBFGS()}, "LBFGS works on all weights"),
        ({}, "optim method"),
    ):
        with pytest.raises(ArgumentError, match=message):
            trained(wrong, 1, network())


def test_a_penalty_comes_before_clipping(local: Context):
    layer = model(L2Regularizer(100.0))
    est = Estimator.from_bigdl(model=layer, loss=MSECriterion(), optimizer=SGD(1.0), seed=0)
    est.fit(X, Y, batch_size=8, clip_norm=0.5)
    moved = np.concatenate([(a - b).ravel() for a, b in zip(weights(est), layer.get_weights(), strict=True)])
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-5)
    # The penalty is so large that the clipped step points to zero.
    assert np.corrcoef(moved[:12], -layer.get_weights()[0].ravel())[0, 1] > 0.999


def test_lbfgs_needs_all_weights_in_one_place(local: Context):
    with pytest.raises(ArgumentError, match="splits them into slices"):
        trained(LBFGS(), workers=2)
    one, two = trained(LBFGS()), trained(LBFGS(), workers=2, backend="torch_distributed")
    for a, b in zip(weights(one), weights(two), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_wrong_arguments_of_methods_are_refused_at_once():
    with pytest.raises(ArgumentError, match=r"nesterov=True needs a momentum and dampening=0\.0"):
        SGD(0.1, momentum=0.9, nesterov=True)
    with pytest.raises(ArgumentError, match="learningrates=.*dict of optim methods"):
        SGD(learningrates=[1.0])
    with pytest.raises(ArgumentError, match="learningrate='fast'"):
        Adam("fast")
    with pytest.raises(ArgumentError, match="leaningrate_schedule"):
        SGD(leaningrate_schedule=0.5)
    with pytest.raises(ArgumentError, match="OptimMethod has no formula"):
        OptimMethod()


def test_a_method_is_saved_with_its_schedule_and_loaded_again(tmp_path):
    path = str(tmp_path / "method.json")
    schedule = SequentialSchedule(10).add(Warmup(0.1), 5).add(Poly(0.5, 100), 100)
    SGD(0.3, momentum=0.9, leaningrate_schedule=schedule).save(path)
    loaded = OptimMethod.load(path)
    assert isinstance(loaded, SGD)
    assert (loaded.learningrate, loaded.momentum, loaded.dampening) == (0.3, 0.9, 0.9)
    assert [loaded.rate().at(step) for step in (0, 3, 50)] == [schedule.rate(0.3, step) for step in (0, 3, 50)]
    with pytest.raises(ArgumentError, match="overWrite=True"):
        Adam().save(path)
    assert isinstance(Adam().save(path, overWrite=True).load(path), Adam)
    Path(path).write_bytes(b"\xac\xed\x00\x05sr")
    with pytest.raises(DataError, match="serialized Java objects"):
        OptimMethod.load(path)
