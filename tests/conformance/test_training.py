"""N workers equal one: weights, metrics and predictions match one process on the same batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

from orca import Estimator, XShards
from orca.context import Context
from tests.conformance.models import make_data, model_creator, optimizer_creator, train_alone


def cut(x, y, sizes):
    """Return shards of these sizes."""
    edges = np.cumsum([0, *sizes])
    assert edges[-1] == len(x)
    return XShards.from_shards([{"x": x[a:b], "y": y[a:b]} for a, b in itertools.pairwise(edges)])


LAYOUTS = {
    "even": [32, 32, 32],
    "uneven": [5, 60, 31],
    "empty_shard": [40, 0, 56],
    "short_last_batch": [33, 33, 35],
    "last_batch_of_one": [64, 33],
}


def estimator(workers, seed=3, **more):
    options = {"loss": nn.CrossEntropyLoss(), **more}
    return Estimator.from_torch(
        model=model_creator, optimizer=optimizer_creator, config={"lr": 0.1}, workers=workers, seed=seed, **options
    )


def skip_repeated_cases(context: Context, backend: str, workers: int) -> None:
    if workers == 1 and backend != "torch_distributed" and context.runtime != "local":
        pytest.skip("one worker runs the same code on every backend: tested locally with each")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_weights_equal_single_process_training_on_the_same_batches(context: Context, backend, workers):
    skip_repeated_cases(context, backend, workers)
    for name, sizes in LAYOUTS.items():
        x, y = make_data(sum(sizes))
        est = estimator(workers, backend=backend)
        history = est.fit(cut(x, y, sizes), epochs=3, batch_size=16)
        alone = train_alone(x, y, epochs=3, batch_size=16, seed=3)
        for key, value in est.get_model().state_dict().items():
            np.testing.assert_allclose(
                value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}"
            )
        assert [record["rows"] for record in history] == [len(x)] * 3


def test_fewer_rows_than_workers_train_and_evaluate_as_in_one_process(context: Context, backend):
    if backend != "torch_distributed" and context.runtime != "local":
        pytest.skip("the rows of a rank do not depend on the backend: tested locally with each")
    for rows in (1, 2) if context.runtime == "local" else (1,):
        x, y = make_data(rows)
        est = estimator(3, backend=backend, metrics=["accuracy"])
        history = est.fit(x, y, epochs=3, batch_size=3, validation_data=(x, y))
        alone = train_alone(x, y, epochs=3, batch_size=3, seed=3)
        for key, value in est.get_model().state_dict().items():
            np.testing.assert_allclose(value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            output = alone(torch.from_numpy(x))
            loss = nn.CrossEntropyLoss()(output, torch.from_numpy(y)).item()
        results = est.evaluate(x, y)
        assert results == pytest.approx({"loss": loss, "accuracy": (output.argmax(1).numpy() == y).mean()}, rel=1e-5)
        assert history[-1]["val_loss"] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(est.predict(x), output, rtol=1e-4, atol=1e-5)


def test_weights_are_the_same_without_shuffling_and_over_two_fits(context: Context):
    x, y = make_data(50)
    est = estimator(2)
    est.fit((x, y), epochs=1, batch_size=16, shuffle=False)
    est.fit({"x": x, "y": y}, epochs=1, batch_size=16, shuffle=False)
    alone = train_alone(x, y, epochs=2, batch_size=16, seed=3, shuffle=False)
    for key, value in est.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6)
    assert est.epoch == 2


def test_class_weighted_loss_is_weighted_over_all_ranks(context: Context, backend):
    x, y = make_data(41)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 3.0]))
    est = estimator(3, loss=loss, backend=backend)
    est.fit(x, y, epochs=2, batch_size=10)
    alone = train_alone(x, y, epochs=2, batch_size=10, seed=3, loss=loss)
    for key, value in est.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6)
    expected = loss(alone(torch.from_numpy(x)), torch.from_numpy(y)).item()
    assert est.evaluate(x, y)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_metrics_are_exact_and_predictions_row_aligned(context: Context, backend, workers):
    skip_repeated_cases(context, backend, workers)
    x, y = make_data(101)
    shards = cut(x, y, [3, 0, 70, 28])
    metrics = ["accuracy", "auc", "f1", {"bias": lambda t, o: float(o[:, 1].mean() - t.mean())}]
    est = estimator(workers, metrics=metrics, backend=backend)
    history = est.fit(shards, epochs=2, batch_size=32, validation_data=shards)
    model = est.get_model().eval()
    with torch.no_grad():
        output = model(torch.from_numpy(x))
        loss = nn.CrossEntropyLoss()(output, torch.from_numpy(y)).item()
    output = output.numpy()
    expected = {
        "loss": loss,
        "accuracy": float((output.argmax(1) == y).mean()),
        "auc": roc_auc_score(y, output[:, 1] - output[:, 0]),
        "f1": f1_score(y, output.argmax(1)),
        "bias": float(output[:, 1].mean() - y.mean()),
    }
    results = est.evaluate(shards, batch_size=7)
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert history[-1][f"val_{name}"] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    np.testing.assert_allclose(est.predict(x), output, rtol=1e-4, atol=1e-5)
    predicted = est.predict(shards, batch_size=9).collect()
    assert [len(shard["prediction"]) for shard in predicted] == [3, 0, 70, 28]
    np.testing.assert_allclose(np.concatenate([s["prediction"] for s in predicted]), output, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([s["y"] for s in predicted]), y)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(4, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        joined = self.left(left) + self.right(right)
        return {"score": joined[:, :1], "rest": joined[:, 1:]}


def score_loss(output, target):
    return nn.functional.mse_loss(output["score"][:, 0], target)


def test_model_with_several_inputs_and_named_outputs_trains_and_predicts(context: Context):
    rng = np.random.default_rng(0)
    features = {"left": rng.normal(size=(30, 2)).astype("f4"), "right": rng.normal(size=(30, 4)).astype("f4")}
    target = features["left"].sum(1)
    est = Estimator.from_torch(
        model=TwoInputs, optimizer=torch.optim.SGD, loss=score_loss, config={"lr": 0.05}, workers=2, seed=0
    )
    history = est.fit({"x": features, "y": target}, epochs=20, batch_size=10)
    assert history["loss"][-1] < 0.2 * history["loss"][0]
    output = est.predict(features)
    assert {name: value.shape for name, value in output.items()} == {"score": (30, 1), "rest": (30, 2)}
    shards = est.predict(XShards.partition({"x": features}, num_shards=3))
    assert set(shards.first()) == {"x", "score", "rest"}


def test_the_number_of_workers_does_not_change_the_curve(local: Context):
    x, y = make_data(77)
    curves = [estimator(workers, seed=5).fit(x, y, epochs=4, batch_size=12)["loss"] for workers in (1, 2, 3, 4)]
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=1e-5)


def test_lazy_transformations_run_between_two_calls_on_all_slots(context: Context):
    x, y = make_data(40)
    est = estimator(4)
    est.fit(x, y, batch_size=16)
    lazy = cut(x, y, [10, 10, 20]).transform_shard(lambda shard: {"x": shard["x"] * 1, "y": shard["y"]})
    assert est.evaluate(lazy)["loss"] == pytest.approx(est.evaluate(x, y)["loss"], rel=1e-6)


def test_save_and_load_continue_exactly(context: Context, backend, tmp_path):
    x, y = make_data(60)
    whole = estimator(2, backend=backend)
    whole.fit(x, y, epochs=4, batch_size=16)
    first = estimator(2, backend=backend)
    first.fit(x, y, epochs=2, batch_size=16)
    first.save(str(tmp_path / "saved"))
    second = estimator(2, backend=backend).load(str(tmp_path / "saved"))
    assert second.epoch == 2
    second.fit(x, y, epochs=2, batch_size=16)
    for key, value in second.get_model().state_dict().items():
        np.testing.assert_array_equal(value.numpy(), whole.get_model().state_dict()[key].numpy())


def test_sharded_replicas_and_asynchronous_servers_work_on_every_runtime(context: Context):
    x, y = make_data(101)
    sharded = estimator(2, sharded=True)
    sharded.fit(cut(x, y, [3, 0, 70, 28]), epochs=2, batch_size=16)
    alone = train_alone(x, y, epochs=2, batch_size=16, seed=3)
    for key, value in sharded.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6)
    # One worker with one server pushes one step at a time, which equals one process.
    single = estimator(1, backend="parameter_server", mode="async")
    single.fit(x, y, epochs=2, batch_size=16)
    for key, value in single.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), alone.state_dict()[key].numpy(), rtol=1e-5, atol=1e-6)
    several = estimator(2, backend="parameter_server", mode="async", servers=2, staleness=1, metrics=["accuracy"])
    history = several.fit(x, y, epochs=15, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]
    assert [record["rows"] for record in history] == [101] * 15
    predicted = several.predict(x).argmax(1)
    assert several.evaluate(x, y)["accuracy"] == pytest.approx((predicted == y).mean())
