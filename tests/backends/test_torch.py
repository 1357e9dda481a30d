"""The torch replica on several ranks: N workers train as a single process does."""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
import threading

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional

from orca import Estimator
from orca.backends.torch.spec import TorchSpec
from orca.context import Context
from orca.errors import ArgumentError
from tests.conformance.models import make_data, model_creator, optimizer_creator, train_alone

X, Y = make_data(41)


def estimator(workers=2, **more):
    options = {
        "model": model_creator,
        "optimizer": optimizer_creator,
        "loss": nn.CrossEntropyLoss(),
        "config": {"lr": 0.1},
        "seed": 3,
    }
    return Estimator.from_torch(**{**options, **more}, workers=workers)


def same_weights(one, two, **tolerance):
    for key, value in one.state_dict().items():
        np.testing.assert_allclose(
            value.numpy(), two.state_dict()[key].numpy(), **{"rtol": 1e-5, "atol": 1e-6, **tolerance}
        )


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(ignore_index=1),
        nn.CrossEntropyLoss(weight=torch.tensor([0.0, 2.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([0.3, 2.0]), label_smoothing=0.1),
    ],
    ids=["plain", "ignore_index", "weight_zero", "weight_and_smoothing"],
)
def test_losses_are_means_over_the_rows_of_all_ranks(local: Context, loss):
    y = Y.copy()
    if loss.ignore_index == -100 and loss.weight is None:
        y[::3] = -100
    # Plain torch divides by zero in a step whose rows all have weight zero, as the few of a short last step may.
    x = X[:40] if loss.weight is not None and not loss.weight[0] else X
    y = y[: len(x)]
    est = estimator(3, loss=loss)
    est.fit(x, y, epochs=2, batch_size=10)
    alone = train_alone(x, y, epochs=2, batch_size=10, seed=3, loss=loss)
    same_weights(est.get_model(), alone)
    expected = loss(alone(torch.from_numpy(x)), torch.from_numpy(y)).item()
    assert est.evaluate(x, y)["loss"] == pytest.approx(expected, rel=1e-5)


def test_ignored_labels_outside_the_classes_work_in_double_precision(local: Context):
    y = Y.copy()
    y[::4] = 255
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0], dtype=torch.float64), ignore_index=255)
    est = estimator(3, model=lambda config: model_creator(config).double(), loss=loss)
    history = est.fit(X, y, epochs=2, batch_size=10)
    assert np.isfinite(history["loss"]).all()


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_models_with_unused_parameters_train_and_leave_them_unchanged(local: Context):
    one, two = estimator(1, model=Unused), estimator(2, model=Unused)
    for est in (one, two):
        est.fit(X, Y, epochs=2, batch_size=10)
    same_weights(one.get_model(), two.get_model())
    torch.manual_seed(3)
    first = Unused()
    np.testing.assert_array_equal(two.get_model().idle.weight.detach(), first.idle.weight.detach())


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_batch_norm_evaluates_the_same_everywhere_after_a_short_last_step(local: Context):
    x, y = make_data(43)
    est = estimator(2, model=Normed)
    history = est.fit(x, y, epochs=2, batch_size=10, validation_data=(x, y))
    warm = est.evaluate(x, y)["loss"]
    output = torch.from_numpy(est.predict(x))
    assert history["val_loss"][-1] == pytest.approx(warm, rel=1e-6)
    assert nn.CrossEntropyLoss()(output, torch.from_numpy(y)).item() == pytest.approx(warm, rel=1e-5)
    est.shutdown()
    assert est.evaluate(x, y)["loss"] == pytest.approx(warm, rel=1e-6)


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2))


def test_dropout_resumes_exactly_after_a_restart_and_a_prediction(local: Context, tmp_path):
    whole = estimator(2, model=Dropping)
    whole.fit(X, Y, epochs=4, batch_size=10)
    broken = estimator(2, model=Dropping)
    broken.fit(X, Y, epochs=2, batch_size=10)
    broken.predict(X)
    broken.save(str(tmp_path / "saved"))
    broken.shutdown()
    again = estimator(2, model=Dropping, seed=99).load(str(tmp_path / "saved"))
    again.fit(X, Y, epochs=2, batch_size=10)
    same_weights(whole.get_model(), again.get_model(), rtol=0, atol=0)


def test_functional_loss_does_not_broadcast(local: Context):
    est = estimator(1, model=lambda config: nn.Linear(6, 1), loss=functional.mse_loss)
    target = X.sum(axis=1)
    est.fit(X, target, epochs=1, batch_size=41)
    output = est.predict(X)[:, 0]
    assert est.evaluate(X, target)["loss"] == pytest.approx(((output - target) ** 2).mean(), rel=1e-4)


def test_partial_optimizers_and_the_config_key_learning_rate_set_the_rate(local: Context):
    first = estimator(1, optimizer=functools.partial(torch.optim.SGD, lr=0.5))
    second = estimator(1, optimizer=torch.optim.SGD, config={"learning_rate": 0.5})
    for est in (first, second):
        assert est.fit(X, Y, batch_size=10)[0]["lr"] == 0.5
    same_weights(first.get_model(), second.get_model())


class Configured(nn.Module):
    def __init__(self, config, width=1, *, dropout=0.1):
        super().__init__()
        self.config, self.width, self.dropout = config, width, dropout


def test_classes_and_creators_receive_the_arguments_they_name():
    config = {"lr": 0.1, "width": 4}
    model = TorchSpec(Configured, config=config).make_model()
    assert (model.config, model.width, model.dropout) == (config, 4, 0.1)
    for loss in (nn.MSELoss, nn.MSELoss(), lambda: nn.MSELoss(), lambda config: nn.MSELoss(), _loss_of):
        assert isinstance(TorchSpec(Configured, loss=loss).make_loss(), nn.MSELoss)
    for loss in (functional.mse_loss, lambda output, target: 0, lambda *both: 0):
        assert TorchSpec(Configured, loss=loss).make_loss() is loss


def _loss_of(config=None):
    return nn.MSELoss()


def test_unreduced_losses_are_rejected_and_bytes_and_float_classes_are_accepted(local: Context):
    with pytest.raises(ArgumentError, match="reduction='none'"):
        estimator(loss=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ArgumentError, match="fit needs loss="):
        estimator(loss=None).fit(X, Y)
    with pytest.raises(ArgumentError, match="seed=-1"):
        estimator(seed=-1)
    pixels = (np.abs(X) * 50).astype("u1")
    assert np.isfinite(estimator().fit(pixels, Y.astype("f8"), batch_size=10)["loss"]).all()
    big = estimator().fit(X.astype(">f4"), Y, batch_size=10)["loss"]
    assert big == estimator().fit(X, Y, batch_size=10)["loss"]
    tensors = estimator().fit(torch.from_numpy(X), torch.from_numpy(Y), batch_size=10)["loss"]
    assert tensors == big


def test_the_sum_of_a_loss_is_that_over_the_rows_of_all_workers(local: Context):
    """A sum has a step that is as long as its batch has rows, for any number of workers."""

    def fit(workers, reduction, lr):
        est = estimator(loss=nn.CrossEntropyLoss(reduction=reduction), workers=workers, config={"lr": lr}, seed=2)
        history = est.fit(X[:30], Y[:30], epochs=2, batch_size=10)
        return [value.numpy() for value in est.get_state_dict().values()], history["loss"]

    expected, losses = fit(1, "mean", 0.1)
    for workers in (1, 2, 3):
        weights, summed = fit(workers, "sum", 0.01)
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        assert summed == pytest.approx(losses)


def test_a_copy_trains_independently(local: Context):
    one = estimator()
    one.fit(X, Y, epochs=1, batch_size=10)
    two = copy.deepcopy(one)
    before = one.evaluate(X, Y)["loss"]
    two.fit(X, Y, epochs=3, batch_size=10)
    assert one.evaluate(X, Y)["loss"] == before
    assert two.evaluate(X, Y)["loss"] != before


def test_two_threads_share_a_gang_without_interference(local: Context):
    one, two = estimator(seed=1), estimator(seed=2)
    one.fit(X, Y, batch_size=10)
    expected = one.evaluate(X, Y)["loss"]
    thread = threading.Thread(target=lambda: two.fit(X, Y, epochs=200, batch_size=10))
    thread.start()
    losses = [one.evaluate(X, Y)["loss"] for _ in range(3)]
    thread.join()
    assert losses == [expected] * 3


def test_rank_killed_while_idle_is_replaced(local: Context):
    est = estimator()
    est.fit(X, Y, batch_size=10)
    expected = est.evaluate(X, Y)["loss"]
    gang = local.warm(2, est.backend.traits.preload)
    victim = psutil.Process(gang.places[1].pid)
    victim.kill()
    psutil.wait_procs([victim], timeout=5)
    for _ in range(50):
        if not gang._inbox.empty():
            break
        threading.Event().wait(0.05)
    assert est.evaluate(X, Y)["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_forked_child_does_not_stop_the_parents_gang(local: Context):
    est = estimator()
    est.fit(X, Y, batch_size=10)
    expected = est.evaluate(X, Y)["loss"]
    child = os.fork()
    if child == 0:
        try:
            import atexit

            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert est.evaluate(X, Y)["loss"] == expected


def test_warm_ranks_import_modules_that_were_added_later(local: Context, tmp_path):
    est = estimator()
    est.fit(X, Y, batch_size=10)
    (tmp_path / "late_module.py").write_text(
        "from torch import nn\nclass Late(nn.Linear):\n    def __init__(self):\n        super().__init__(6, 2)\n"
    )
    sys.path.append(str(tmp_path))
    try:
        from late_module import Late

        assert np.isfinite(estimator(model=Late).fit(X, Y, batch_size=10)["loss"]).all()
    finally:
        sys.path.remove(str(tmp_path))


def test_stopping_a_gang_ends_a_suspended_rank(local: Context):
    gang = local.gang(2)
    gang.call(_nothing)
    victim = psutil.Process(gang.places[0].pid)
    os.kill(victim.pid, signal.SIGSTOP)
    gang.stop()
    _, alive = psutil.wait_procs([victim], timeout=8)
    assert not alive


def _nothing(rank_context):
    return None
