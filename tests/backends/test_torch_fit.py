"""Options of `fit` on torch models, each compared with a plain loop in this process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca.context import Context
from orca.errors import ArgumentError
from tests.backends.torch_estimators import BACKENDS, SEED, alone, close, estimator
from tests.conformance.models import make_data


@pytest.mark.parametrize("sync", BACKENDS)
def test_clipping_accumulation_and_adamw_groups_equal_one_process(local: Context, sync):
    x, y = make_data(75)

    def optimizer(model, config):
        return torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "weight_decay": 0.3}],
            lr=0.02,
        )

    def step(model, xs, ys, rows):
        nn.functional.cross_entropy(model(xs), ys).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    est = estimator(sync, optimizer=optimizer)
    est.fit(x, y, epochs=2, batch_size=16, accumulate=3, clip_norm=0.05, clip_value=0.2)
    net = alone(x, y, step, optimizer=optimizer)
    close(est, net, rtol=1e-4, atol=1e-5)
    # The predecessor's methods for the same options.
    named = estimator(sync, optimizer=optimizer)
    named.set_l2_norm_gradient_clipping(0.05)
    named.set_constant_gradient_clipping(-0.2, 0.2)
    named.fit(x, y, epochs=2, batch_size=16)
    close(named, net, rtol=1e-4, atol=1e-5)
    named.clear_gradient_clipping()
    assert named._preferences.clip_norm is None


@pytest.mark.parametrize("sync", BACKENDS)
def test_accumulation_matches_one_process_when_a_rank_has_no_rows(local: Context, sync):
    # The last step has two rows, all on one rank; the other ranks take part without rows.
    x, y = make_data(66)

    def step(model, xs, ys, rows):
        nn.functional.cross_entropy(model(xs), ys).backward()

    est = estimator(sync, workers=3, sync_batchnorm=sync != "sharded")
    est.fit(x, y, epochs=2, batch_size=16, accumulate=2)
    close(est, alone(x, y, step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sync", BACKENDS)
def test_sample_and_class_weights_give_the_weighted_mean_over_all_ranks(local: Context, sync):
    x, y = make_data(61)
    weights = np.random.default_rng(0).uniform(0, 3, len(x)).astype("f4")
    classes = torch.tensor([0.5, 4.0])

    def step(model, xs, ys, rows):
        losses = nn.functional.cross_entropy(model(xs), ys, reduction="none")
        w = torch.from_numpy(weights[rows]) * classes[ys]
        ((losses * w).sum() / w.sum()).backward()

    est = estimator(sync)
    est.fit(x, y, epochs=2, batch_size=16, sample_weight=weights, class_weight={0: 0.5, 1: 4.0}, accumulate=2)
    net = alone(x, y, step)
    close(est, net)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y), reduction="none").numpy()
    loss = est.evaluate(x, y, sample_weight=weights, batch_size=7)["loss"]
    assert loss == pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-4)


def test_sample_weights_may_be_a_column_and_need_a_loss_per_row(local: Context):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(40)
    frame = pandas.DataFrame(x, columns=list("abcdef")).assign(label=y, weight=np.linspace(0, 1, 40))
    one, two = estimator(), estimator()
    one.fit(frame, feature_cols=list("abcdef"), label_cols="label", sample_weight="weight", epochs=1, batch_size=8)
    two.fit(x, y, sample_weight=np.linspace(0, 1, 40), epochs=1, batch_size=8)
    close(one, two.get_model())
    est = estimator(loss=lambda output, target: nn.functional.cross_entropy(output, target))
    with pytest.raises(ArgumentError, match="need a loss that can return one value per row"):
        est.fit(x, y, class_weight={0: 2.0})
    with pytest.raises(ArgumentError, match="class_weight=.*expected a dict"):
        estimator().fit(x, y, class_weight=[1, 2])


def normed(config):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("sync", BACKENDS)
def test_sync_batchnorm_equals_one_process(local: Context, sync):
    x, y = make_data(67)

    def step(model, xs, ys, rows):
        nn.functional.cross_entropy(model(xs), ys).backward()

    est = estimator(sync, model=normed, sync_batchnorm=True, workers=3)
    est.fit(x, y, epochs=2, batch_size=16)
    close(est, alone(x, y, step, model=normed), rtol=1e-4, atol=1e-5)
    assert est.evaluate(x, y)["loss"] < 1


@pytest.mark.parametrize("sync", BACKENDS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_in_half_precision_learns(local: Context, sync, precision):
    x, y = make_data(400)
    est = estimator(sync, precision=precision, optimizer=torch.optim.Adam, config={"lr": 0.02}, metrics=["accuracy"])
    history = est.fit(x, y, epochs=12, batch_size=32)
    assert history["accuracy"][-1] > 0.85
    assert est.predict(x[:3]).dtype in (np.float32, np.float16)


@pytest.mark.parametrize("sync", ["ddp", "server"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_change_the_loss_only_slightly(local: Context, sync, compression):
    x, y = make_data(64)
    est, plain = estimator(sync, compression=compression), estimator(sync)
    losses = [one.fit(x, y, epochs=4, batch_size=16)["loss"] for one in (est, plain)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)
    assert losses[0] != losses[1]


@pytest.mark.horovod
def test_horovod_compresses_to_fp16(local: Context):
    x, y = make_data(64)
    history = estimator("horovod", compression="fp16").fit(x, y, epochs=4, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("sync", BACKENDS)
def test_lazy_layers_train_and_unused_parameters_do_not_change(local: Context, sync):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))
            self.spare = nn.Linear(3, 3)

        def forward(self, x):
            return self.body(x)

    x, y = make_data(50)
    lazy = lambda config: Lazy()  # noqa: E731
    sgd = lambda model, config: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)  # noqa: E731
    est = estimator(sync, model=lazy, optimizer=sgd)
    history = est.fit(x, y, epochs=3, batch_size=10)
    assert history["loss"][-1] < history["loss"][0]
    assert est.predict(x).shape == (50, 2)
    torch.manual_seed(SEED)
    if sync != "sharded":
        # Weight decay would shrink it if it had a zero gradient.
        np.testing.assert_array_equal(est.get_model().spare.weight.detach(), Lazy().spare.weight.detach())


def test_integers_are_indices_for_embeddings_and_numbers_for_layers(local: Context):
    x = np.arange(40).reshape(20, 2)
    y = (x[:, 0] % 4 == 0).astype("i8")
    plain = estimator(model=lambda config: nn.Linear(2, 2), config={"lr": 1e-4})
    assert np.isfinite(plain.fit(x, y, batch_size=10)["loss"][0])
    embedded = estimator(model=lambda config: nn.Sequential(nn.Embedding(40, 3), nn.Flatten(), nn.Linear(6, 2)))
    assert np.isfinite(embedded.fit(x, y, batch_size=10)["loss"][0])
    assert embedded.predict(x).shape == (20, 2)


def test_validation_freq_max_steps_initial_epoch_and_defaults(local: Context):
    x, y = make_data(64)
    est = estimator(epochs=5, batch_size=16)
    history = est.fit(x, y, validation_data=(x, y), validation_freq=2)
    assert [("val_loss" in record) for record in history] == [False, True, False, True, True]
    assert est.step == 20
    assert len(est.fit(x, y, max_steps=6)) == 2
    assert est.fit(x, y, max_steps=6)[-1]["rows"] == 32
    other = estimator()
    history = other.fit(x, y, epochs=5, initial_epoch=3, batch_size=16)
    assert history["epoch"] == [4, 5]
