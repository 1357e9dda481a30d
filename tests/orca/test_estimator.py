"""The estimator on the driver: bad input is refused with a helpful message."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError, XShards
from orca.context import Context
from orca.errors import ArgumentError, DataError, NotFittedError, ResourceError
from tests.conformance.models import make_data, model_creator, optimizer_creator
from tests.conftest import SLOTS


def estimator(**more):
    options = {
        "model": model_creator,
        "optimizer": optimizer_creator,
        "loss": nn.CrossEntropyLoss(),
        "config": {"lr": 0.1},
        "workers": 2,
        "seed": 0,
    }
    return Estimator.from_torch(**{**options, **more})


X, Y = make_data(20)

BAD_FITS = {
    "no labels": (lambda est: est.fit(X), DataError, r"no labels.*fit\(x, y\).*ndarray of shape \(20, 6\)"),
    "lengths": (lambda est: est.fit(X, Y[:7]), DataError, r"different numbers of rows \(x: 20, y: 7\)"),
    "no rows": (lambda est: est.fit(X[:0], Y[:0]), DataError, "has no rows"),
    "objects": (lambda est: est.fit(np.array([[1], [2, 3]], object), Y[:2]), DataError, "dtype object"),
    "scalar": (lambda est: est.fit(X, np.float32(3)), DataError, "y=.*expected data with rows"),
    "labels twice": (lambda est: est.fit({"x": X, "y": Y}, Y), DataError, "given twice"),
    "batch_size 0": (lambda est: est.fit(X, Y, batch_size=0), ArgumentError, "batch_size=0: expected an integer"),
    "batch_size 1": (lambda est: est.fit(X, Y, batch_size=1), ArgumentError, r"batch_size=1 is smaller than workers=2"),
    "epochs": (lambda est: est.fit(X, Y, epochs=1.5), ArgumentError, "epochs=1.5"),
    "shards of arrays": (lambda est: est.fit(XShards.partition(X)), DataError, "expected dicts"),
    "shards without y": (lambda est: est.fit(XShards.partition({"x": X})), DataError, "have no labels"),
    "validation": (lambda est: est.fit(X, Y, validation_data=X), DataError, "validation_data= has no labels"),
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_bad_data_is_refused_before_the_launch(local: Context, name):
    call, kind, message = BAD_FITS[name]
    est = estimator()
    with pytest.raises(kind, match=message):
        call(est)
    gang = local.warm(2, est.backend.traits.preload)
    assert gang is None or not gang.running


def test_bad_models_are_refused_when_the_estimator_is_created():
    other = nn.Linear(6, 2)
    mine = nn.Linear(6, 2)
    with pytest.raises(ArgumentError, match="parameters of another model"):
        estimator(model=mine, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(ArgumentError, match=r"optimizer= is an object, but model= is a class or creator"):
        estimator(optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(ArgumentError, match="model=3"):
        estimator(model=3)
    with pytest.raises(ArgumentError, match="loss='mse'"):
        estimator(loss="mse")
    with pytest.raises(ArgumentError, match="workers=0"):
        estimator(workers=0)
    with pytest.raises(ArgumentError, match=r"backend='torch_distibuted'.*Did you mean 'torch_distributed'"):
        estimator(backend="torch_distibuted")
    with pytest.raises(ArgumentError, match=r"'acuracy'.*[Dd]id you mean 'accuracy'"):
        estimator(metrics=["acuracy"])


def test_too_many_workers_are_refused_at_once(local: Context):
    with pytest.raises(ResourceError, match=rf"workers=50 does not fit.*{SLOTS} slots.*init_orca_context\(cores=50\)"):
        estimator(workers=50).fit(X, Y, batch_size=64)


def test_model_and_optimizer_objects_are_trained_as_copies(local: Context):
    model = model_creator({})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    est = estimator(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.05))
    history = est.fit(X, Y, epochs=15, batch_size=10)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
        assert not torch.equal(est.get_model().state_dict()[key], before[key])


def test_shapes_that_would_broadcast_are_refused_and_columns_are_aligned(local: Context):
    class Regressor(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, 1))

    est = estimator(model=Regressor, loss=nn.MSELoss())
    target = X.sum(axis=1)
    history = est.fit(X, target, epochs=30, batch_size=10)
    assert history["loss"][-1] < 0.1 * history["loss"][0]
    assert est.predict(X).shape == (20, 1)
    with pytest.raises(WorkerError, match=r"output has shape \(5, 1\), the labels \(5, 3\)"):
        est.fit(X, np.zeros((20, 3), "f4"), batch_size=10)


def test_binary_labels_and_double_precision_are_accepted(local: Context):
    est = estimator(model=lambda config: nn.Linear(6, 1), loss=nn.BCEWithLogitsLoss(), metrics=["accuracy", "auc"])
    x, y = make_data(200)
    y = (x[:, 0] > 0.3).astype("int8")
    est.fit(x.astype("float64"), y, epochs=40, batch_size=50)
    scores = est.evaluate(x.astype("float64"), y)
    logits = est.predict(x)[:, 0]
    assert scores["accuracy"] == pytest.approx(((logits > 0) == y).mean())
    assert scores["accuracy"] > 0.9


def test_second_positional_number_means_epochs(local: Context):
    assert len(estimator().fit((X, Y), 3, batch_size=10)) == 3


def test_save_needs_a_trained_model_and_load_a_saved_one(tmp_path, local: Context):
    with pytest.raises(NotFittedError, match="call fit or load first"):
        estimator().save(str(tmp_path / "model"))
    with pytest.raises(ArgumentError, match="has no saved estimator"):
        estimator().load(str(tmp_path / "nowhere"))


def test_evaluate_and_predict_work_before_fit_with_the_initial_weights(local: Context):
    est = estimator(metrics=["accuracy"])
    output = est.predict(X)
    assert output.shape == (20, 2)
    model = est.get_model().eval()
    np.testing.assert_allclose(model(torch.from_numpy(X)).detach().numpy(), output, rtol=1e-5, atol=1e-6)
    assert est.evaluate(X, Y)["accuracy"] == pytest.approx((output.argmax(1) == Y).mean())


def test_two_estimators_share_the_warm_gang_without_interference(local: Context):
    one, two = estimator(seed=1), estimator(seed=2)
    one.fit(X, Y, epochs=2, batch_size=10)
    first = one.predict(X)
    two.fit(X, Y, epochs=2, batch_size=10)
    np.testing.assert_array_equal(one.predict(X), first)
    assert np.abs(two.predict(X) - first).max() > 1e-3
    one.fit(X, Y, epochs=2, batch_size=10)
    again = estimator(seed=1)
    again.fit(X, Y, epochs=4, batch_size=10)
    np.testing.assert_array_equal(one.predict(X), again.predict(X))


def test_explain_shows_runtime_ranks_and_missing_slots(local: Context):
    est = estimator()
    text = est.explain()
    assert f"runtime local: 2 of {SLOTS} slots" in text
    assert "torch_distributed" in text
    est.fit(X, Y, batch_size=10)
    assert est.explain().count("running, host") == 2
    assert "will not start" in estimator(workers=9).explain()
    est.shutdown()
    assert "running, host" not in est.explain()


def test_output_of_ranks_is_shown_with_log_output(local: Context, capsys):
    from orca import OrcaContext

    class Chatty(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("batch of", len(x))
            return super().forward(x)

    OrcaContext.log_output = True
    try:
        estimator(model=lambda config: Chatty(6, 2)).fit(X, Y, batch_size=20)
    finally:
        OrcaContext.log_output = False
    output = capsys.readouterr().out
    assert "[rank 0] batch of 10" in output
    assert "[rank 1] batch of 10" in output
