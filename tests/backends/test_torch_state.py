"""The state of torch estimators: shared by all backends, exported, and kept when a fit fails."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from orca import WorkerError
from orca.callbacks import Callback
from orca.context import Context
from orca.triggers import SeveralIteration
from tests.backends.torch_estimators import close, estimator
from tests.conformance.models import make_data


def test_every_backend_resumes_the_optimizer_state_of_every_other(local: Context, tmp_path):
    x, y = make_data(60)
    make = {"optimizer": torch.optim.Adam, "config": {"lr": 0.01}}
    reference = estimator("ddp", **make)
    reference.fit(x, y, epochs=4, batch_size=16)
    for first in ("ddp", "sharded", "server"):
        trained = estimator(first, **make)
        trained.fit(x, y, epochs=2, batch_size=16)
        path = trained.save(str(tmp_path / first))
        for second in ("ddp", "sharded", "server"):
            rest = estimator(second, workers=3, **make).load(path)
            rest.fit(x, y, epochs=2, batch_size=16)
            close(rest, reference.get_model(), rtol=1e-4, atol=1e-5)


def large_model(config):
    """Return a model of 10 MB, whose gradients are summed in a ring, which small ones are not."""
    widths = (6, 1024, 1024, 1500)
    layers = [layer for sizes in itertools.pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 2))


def test_a_model_of_several_megabytes_resumes_bit_for_bit_on_three_ranks(local: Context, tmp_path):
    x, y = make_data(72)
    # The sums of three ranks differ in the last bit if a number moves to another position of its message.
    make = {"model": large_model, "optimizer": torch.optim.Adam, "config": {"lr": 0.001}, "workers": 3}
    options = {"epochs": 2, "batch_size": 12}
    whole = estimator(**make)
    expected = whole.fit(x, y, **options)
    estimator(**make, model_dir=str(tmp_path)).fit(x, y, **options, max_steps=8, checkpoint_trigger=SeveralIteration(8))
    local.gang(3).stop()
    resumed = estimator(**make, model_dir=str(tmp_path))
    history = resumed.fit(x, y, **options, resume=True)
    assert (resumed.step, history["loss"]) == (whole.step, expected["loss"][1:])
    for name, value in whole.get_state_dict().items():
        np.testing.assert_array_equal(resumed.get_state_dict()[name], value, err_msg=name)


def test_exported_model_output_columns_and_state_dict_match_the_estimator(local: Context, tmp_path):
    x, y = make_data(32)
    est = estimator()
    est.fit(x, y, batch_size=16)
    program = torch.export.load(est.export("exported_program", str(tmp_path / "model.pt2"))).module()
    np.testing.assert_allclose(program(torch.from_numpy(x)).detach(), est.predict(x), rtol=1e-4, atol=1e-5)
    from orca import XShards

    named = est.predict(XShards.partition({"x": x}), output_cols="score").first()
    assert set(named) == {"x", "score"}
    with pytest.raises(Exception, match="the model has 1 outputs"):
        est.predict(XShards.partition({"x": x}), output_cols=["a", "b"]).first()
    assert all(isinstance(value, torch.Tensor) for value in est.get_state_dict().values())
    est.save(str(tmp_path / "saved"))
    loaded = estimator().load(str(tmp_path / "saved"))
    assert loaded.export("torchscript", str(tmp_path / "again.pt")).endswith("again.pt")


def test_fit_does_not_change_the_users_model_object(local: Context):
    model = nn.Linear(6, 2)
    before = copy.deepcopy(model.state_dict())
    est = estimator(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    est.fit(*make_data(32), batch_size=16)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert not torch.equal(est.get_model().weight, before["weight"])


def test_a_failed_fit_leaves_the_estimator_as_it_was(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator()
    est.fit(x, y, epochs=2, batch_size=16)
    other = estimator(seed=99)
    other.fit(x, y, batch_size=16)
    other.save(str(tmp_path / "other"))
    before = est.epoch, est.step, est.seed, est.predict(x).tolist()

    class Fail(Callback):
        def after_batch(self, run):
            raise ValueError("no")

    for more in ({"initial_epoch": 7, "epochs": 9}, {"resume": str(tmp_path / "other"), "epochs": 3}):
        with pytest.raises(WorkerError, match="ValueError: no"):
            est.fit(x, y, batch_size=16, callbacks=[Fail()], **more)
        assert (est.epoch, est.step, est.seed, est.predict(x).tolist()) == before
    reference = estimator()
    reference.fit(x, y, epochs=3, batch_size=16)
    est.fit(x, y, batch_size=16)
    close(est, reference.get_model())
