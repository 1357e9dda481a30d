"""What fit can be asked for on torch models, each compared with a plain loop in this process."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator, WorkerError
from orca.callbacks import Callback, EarlyStopping, LambdaCallback, LRScheduler, ModelCheckpoint
from orca.context import Context
from orca.errors import ArgumentError, DataError, NotFittedError, NotPicklableError
from tests.conformance.models import global_order, make_data, model_creator, optimizer_creator

SEED = 5
SYNCS = {
    "ddp": {"backend": "torch_distributed"},
    "sharded": {"backend": "torch_distributed", "sharded": True},
    "horovod": {"backend": "horovod"},
    "server": {"backend": "parameter_server"},
}
BACKENDS = [pytest.param(name, marks=pytest.mark.horovod) if name == "horovod" else name for name in SYNCS]


def estimator(sync: str = "ddp", **more) -> Estimator:
    options = {
        "model": model_creator,
        "optimizer": optimizer_creator,
        "loss": nn.CrossEntropyLoss(),
        "config": {"lr": 0.1},
        "workers": 2,
        "seed": SEED,
        **SYNCS[sync],
        **more,
    }
    return Estimator.from_torch(**options)


def alone(x, y, step, *, epochs=2, batch_size=16, model=model_creator, optimizer=optimizer_creator, lr=0.1):
    """A plain loop over the same batches; `step(model, optimizer, x, y, rows)` does the work."""
    torch.manual_seed(SEED)
    net = model({})
    opt = optimizer(net, {"lr": lr})
    for epoch in range(epochs):
        order = global_order(len(x), SEED, epoch, True)
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            opt.zero_grad()
            step(net, torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), rows)
            opt.step()
    return net


def close(est, net, rtol=1e-5, atol=1e-6):
    for key, value in est.get_model().state_dict().items():
        np.testing.assert_allclose(value.numpy(), net.state_dict()[key].numpy(), rtol=rtol, atol=atol, err_msg=key)


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
    # The predecessor's names for the same.
    named = estimator(sync, optimizer=optimizer)
    named.set_l2_norm_gradient_clipping(0.05)
    named.set_constant_gradient_clipping(-0.2, 0.2)
    named.fit(x, y, epochs=2, batch_size=16)
    close(named, net, rtol=1e-4, atol=1e-5)
    named.clear_gradient_clipping()
    assert named._clip_norm is None


@pytest.mark.parametrize("sync", BACKENDS)
def test_sample_and_class_weights_are_a_weighted_mean_over_all_ranks(local: Context, sync):
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
    found = est.evaluate(x, y, sample_weight=weights, batch_size=7)["loss"]
    assert found == pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-4)


def test_weights_come_from_a_column_and_need_a_loss_with_rows(local: Context):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(40)
    frame = pandas.DataFrame(x, columns=list("abcdef")).assign(label=y, weight=np.linspace(0, 1, 40))
    one, two = estimator(), estimator()
    one.fit(frame, feature_cols=list("abcdef"), label_cols="label", sample_weight="weight", epochs=1, batch_size=8)
    two.fit(x, y, sample_weight=np.linspace(0, 1, 40), epochs=1, batch_size=8)
    close(one, two.get_model())
    est = estimator(loss=lambda output, target: nn.functional.cross_entropy(output, target))
    with pytest.raises(ArgumentError, match="need a loss that can give a value per row"):
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
def test_half_precision_learns(local: Context, sync, precision):
    x, y = make_data(400)
    est = estimator(sync, precision=precision, optimizer=torch.optim.Adam, config={"lr": 0.02}, metrics=["accuracy"])
    history = est.fit(x, y, epochs=12, batch_size=32)
    assert history["accuracy"][-1] > 0.85
    assert est.predict(x[:3]).dtype in (np.float32, np.float16)


@pytest.mark.parametrize("sync", ["ddp", "server"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_stay_near(local: Context, sync, compression):
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
def test_lazy_layers_and_unused_parameters_work_as_in_one_process(local: Context, sync):
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
        # Weight decay would shrink it if it were given a gradient of zeros.
        np.testing.assert_array_equal(est.get_model().spare.weight.detach(), Lazy().spare.weight.detach())


def test_schedulers_step_per_epoch_per_step_and_by_result(local: Context):
    x, y = make_data(64)
    lr = torch.optim.lr_scheduler
    est = estimator(scheduler_creator=lambda optimizer, config: lr.StepLR(optimizer, 1, gamma=config["gamma"]),
                    config={"lr": 0.1, "gamma": 0.5})  # fmt: skip
    assert est.fit(x, y, epochs=3, batch_size=16)["lr"] == pytest.approx([0.1, 0.05, 0.025])
    # A second fit goes on with the schedule.
    assert est.fit(x, y, epochs=1, batch_size=16)["lr"] == pytest.approx([0.0125])
    stepwise = estimator()
    callback = LRScheduler(lambda optimizer: lr.LinearLR(optimizer, 1.0, 0.0, total_iters=8), per="step")
    assert stepwise.fit(x, y, epochs=2, batch_size=16, callbacks=callback)["lr"] == pytest.approx([0.05, 0.0])
    plateau = estimator(config={"lr": 0.0})
    callback = LRScheduler(lambda optimizer, config: lr.ReduceLROnPlateau(optimizer, patience=0, factor=0.1, eps=0))
    plateau = estimator(config={"lr": 1e-30})
    rates = plateau.fit(x, y, epochs=3, batch_size=16, callbacks=[callback])["lr"]
    assert rates[-1] < rates[0]


def test_early_stopping_ends_all_ranks_together_and_restores_the_best(local: Context):
    x, y = make_data(64)
    est = estimator(config={"lr": 0.3})
    stop = EarlyStopping("val_loss", patience=1, restore_best=True)
    noisy = make_data(40, seed=9)
    history = est.fit(x, y, epochs=60, batch_size=16, validation_data=(noisy[0], 1 - noisy[1]), callbacks=[stop])
    assert len(history) < 60
    assert "did not improve" in history.stopped
    best = min(history["val_loss"])
    assert stop.best == best  # rank 0's copy came back
    assert est.evaluate(noisy[0], 1 - noisy[1])["loss"] == pytest.approx(best, rel=1e-6)
    with pytest.raises(ArgumentError, match="EarlyStopping monitors 'val_loss': give validation_data="):
        estimator().fit(x, y, callbacks=[EarlyStopping()])
    with pytest.raises(WorkerError, match="monitor='accuracy' is not among the results: epoch, loss"):
        estimator().fit(x, y, callbacks=[EarlyStopping("accuracy")])


def test_one_rank_that_asks_to_stop_stops_all_in_the_same_step(local: Context):
    class Impatient(Callback):
        def __init__(self):
            self.steps = 0

        def after_batch(self, run):
            self.steps = run.step
            if run.rank == 1 and run.step == 5:
                run.stop("rank 1 has seen enough")

    x, y = make_data(200)
    callback = Impatient()
    est = estimator(workers=3)
    history = est.fit(x, y, epochs=3, batch_size=8, callbacks=[callback])
    assert history.stopped == "rank 1 has seen enough"
    assert est.step == callback.steps == 5
    assert history["rows"] == [40]


def test_hooks_are_called_in_order_and_see_agreed_gradients(local: Context):
    class Notes(Callback):
        def __init__(self):
            self.calls, self.norms = [], []

        def before_run(self, run):
            self.calls.append("run")

        def before_epoch(self, run):
            self.calls.append(f"epoch {run.epoch}")

        def before_batch(self, run):
            self.calls.append("batch")

        def on_gradients(self, run):
            self.norms.append(float(nn.utils.get_total_norm([p.grad for p in run.model.parameters()])))

        def after_epoch(self, run):
            self.calls.append(f"loss {run.record['loss'] > 0}")
            run.record["mine"] = 7

        def after_run(self, run):
            self.calls.append("end")

    x, y = make_data(32)
    one, two = Notes(), Notes()
    assert estimator(workers=2).fit(x, y, epochs=2, batch_size=16, callbacks=[one])["mine"] == [7, 7]
    estimator(workers=1).fit(x, y, epochs=2, batch_size=16, callbacks=[two])
    epoch = ["batch", "batch", "loss True"]
    assert one.calls == ["run", "epoch 1", *epoch, "epoch 2", *epoch, "end"]
    np.testing.assert_allclose(one.norms, two.norms, rtol=1e-4)
    said = []
    estimator(workers=1).fit(x, y, callbacks=LambdaCallback(after_epoch=lambda run: said.append(run.epoch)))
    with pytest.raises(ArgumentError, match="the class EarlyStopping; expected objects"):
        estimator().fit(x, y, callbacks=[EarlyStopping])


def test_model_checkpoints_keep_the_best_and_the_last(local: Context, tmp_path):
    x, y = make_data(64)
    best = ModelCheckpoint(str(tmp_path / "best"), monitor="val_loss", keep=2)
    last = ModelCheckpoint(str(tmp_path / "last"), keep=2)
    est = estimator(config={"lr": 0.5})
    history = est.fit(x, y, epochs=6, batch_size=16, validation_data=make_data(40, seed=9), callbacks=[best, last])
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == ["epoch-0005", "epoch-0006"]
    order = np.argsort(history["val_loss"])[:2] + 1
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == sorted(f"epoch-{n:04d}" for n in order)
    loaded = estimator(config={"lr": 0.5}).load(best.best_path)
    assert loaded.evaluate(*make_data(40, seed=9))["loss"] == pytest.approx(min(history["val_loss"]), rel=1e-6)


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


def generator(config):
    return nn.ModuleDict({"make": nn.Linear(2, 4), "judge": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))})


def two_optimizers(model, config):
    return {
        "make": torch.optim.Adam(model["make"].parameters(), 0.02),
        "judge": torch.optim.Adam(model["judge"].parameters(), 0.01),
    }


def gan_step(step):
    real = step.x
    noise = torch.linspace(-1, 1, len(real) * 2).view(-1, 2)
    score = nn.functional.binary_cross_entropy_with_logits
    fake = step.model["make"](noise)
    told = [step.model["judge"](rows) for rows in (real, fake.detach())]
    judged = score(told[0], torch.ones(len(real), 1)) + score(told[1], torch.zeros(len(real), 1))
    step.minimize(judged, "judge")
    made = score(step.model["judge"](fake), torch.ones(len(real), 1))
    step.minimize(made, "make")
    return {"judge_loss": judged, "make_loss": made}


@pytest.mark.parametrize("sync", ["ddp", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_a_custom_step_trains_two_losses_without_labels(local: Context, sync, tmp_path):
    x = (np.random.default_rng(0).normal(size=(64, 4)) + 3).astype("f4")
    options = {"model": generator, "optimizer": two_optimizers, "loss": None, "train_step": gan_step}
    est = estimator(sync, **options)
    history = est.fit({"x": x}, epochs=4, batch_size=16)
    assert {"judge_loss", "make_loss", "loss"} <= set(history.columns)
    first = history["loss"][0]
    assert first == pytest.approx(history["judge_loss"][0] + history["make_loss"][0], rel=1e-6)
    est.save(str(tmp_path / "gan"))
    again = estimator(sync, **options).load(str(tmp_path / "gan"))
    np.testing.assert_array_equal(again.fit({"x": x}, batch_size=16)["loss"], est.fit({"x": x}, batch_size=16)["loss"])
    with pytest.raises(ArgumentError, match="train_step= brings its own optimizer steps"):
        estimator("server", **options)
    with pytest.raises(WorkerError, match="optimizer='maker' does not exist. Optimizers: make, judge.*Did you mean"):
        estimator(sync, **{**options, "train_step": lambda step: step.minimize(step.x.sum(), "maker")}).fit({"x": x})


def test_a_custom_step_equals_one_process(local: Context):
    def plain(step):
        loss = nn.functional.cross_entropy(step.model(step.x), step.y)
        step.minimize(loss)
        return loss

    x, y = make_data(61)
    losses = [
        estimator(workers=n, train_step=plain, loss=None).fit(x, y, epochs=2, batch_size=16)["loss"] for n in (1, 3)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


class Slow(nn.Module):
    """Takes its time on the last worker."""

    def __init__(self, seconds: float, rank: int) -> None:
        super().__init__()
        self.body, self.seconds, self.rank = model_creator({}), seconds, rank

    def forward(self, x):
        if self.training and torch.distributed.get_rank() == self.rank:
            time.sleep(self.seconds)
        return self.body(x)


class Clock(Callback):
    """When each rank was done with its steps, and how far the others were, by files of steps."""

    acts_on_batches = False

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_batch(self, run):
        with open(f"{self.folder}/{run.rank}", "a") as file:
            file.write(f"{run.step} {time.time()}\n")


def times(folder, rank):
    return [float(line.split()[1]) for line in (folder / str(rank)).read_text().splitlines()]


def test_async_lets_fast_workers_go_ahead_but_not_further_than_the_staleness(local: Context, tmp_path):
    x, y = make_data(160)
    for staleness in (None, 3):
        folder = tmp_path / str(staleness)
        folder.mkdir()
        more = {} if staleness is None else {"staleness": staleness}
        est = estimator("server", mode="async", model=lambda config: Slow(0.08, 1), **more)
        history = est.fit(x, y, epochs=1, batch_size=8, callbacks=[Clock(str(folder))])
        assert history["rows"] == [160]
        fast, slow = times(folder, 0), times(folder, 1)
        assert len(fast) == len(slow) == 20
        if staleness is None:
            # All its steps in the time of a few of the slow one's.
            assert fast[-1] - fast[0] < 0.5 * (slow[-1] - slow[0])
        else:
            # It ends a step only when the slow one has ended all but three of those before it.
            for step in range(4, 20):
                assert fast[step] > slow[step - staleness - 1] - 0.02


def test_async_learns_with_several_servers_and_its_state_serves_the_others(local: Context, tmp_path):
    x, y = make_data(400)
    est = estimator(
        "server", mode="async", servers=2, staleness=2, optimizer=torch.optim.Adam, config={"lr": 0.01},
        metrics=["accuracy"],
    )  # fmt: skip
    history = est.fit(x, y, epochs=12, batch_size=32, validation_data=(x, y))
    assert history["val_accuracy"][-1] > 0.85
    est.save(str(tmp_path / "async"))
    plain = estimator("ddp", optimizer=torch.optim.Adam, config={"lr": 0.01}, metrics=["accuracy"])
    plain.load(str(tmp_path / "async"))
    assert plain.evaluate(x, y)["accuracy"] == pytest.approx(history["val_accuracy"][-1])
    assert plain.fit(x, y, batch_size=32)["loss"][0] < 1.1 * history["loss"][-1]
    again = estimator("server", mode="async", optimizer=torch.optim.Adam, config={"lr": 0.01})
    again.load(str(tmp_path / "async")).fit(x, y, batch_size=32)
    assert "1 server ranks" in again.explain() or "server" in again.explain()
    with pytest.raises(ArgumentError, match="do not run in lockstep; use EveryEpoch"):
        est.fit(x, y, checkpoint_trigger=5, max_failures=1)


def test_optimizer_state_travels_between_all_backends(local: Context, tmp_path):
    x, y = make_data(60)
    make = {"optimizer": torch.optim.Adam, "config": {"lr": 0.01}}
    reference = estimator("ddp", **make)
    reference.fit(x, y, epochs=4, batch_size=16)
    for first in ("ddp", "sharded", "server"):
        half = estimator(first, **make)
        half.fit(x, y, epochs=2, batch_size=16)
        path = half.save(str(tmp_path / first))
        for second in ("ddp", "sharded", "server"):
            rest = estimator(second, workers=3, **make).load(path)
            rest.fit(x, y, epochs=2, batch_size=16)
            close(rest, reference.get_model(), rtol=1e-4, atol=1e-5)


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        import threading

        self.encoder = nn.Linear(6, 2)
        self.encoder.guard = threading.Lock()

    def forward(self, x):
        return self.encoder(x)


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 1)

    def forward(self, x):
        return self.body(x).sqrt() * float("nan")


def test_bad_input_is_told_before_the_launch_or_by_the_rank(local: Context):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(20)
    with pytest.raises(NotPicklableError, match=r"model\.encoder\.guard is a lock"):
        estimator(model=Locked(), optimizer=torch.optim.SGD).fit(x, y)
    with pytest.raises(NotPicklableError, match=r"model's variable lock is a lock"):
        lock = Locked().encoder.guard
        estimator(model=lambda config: (lock, model_creator(config))[1]).fit(x, y)
    with pytest.raises(WorkerError, match=r"output has shape \(10, 2\) .*labels \(10, 3\)"):
        estimator().fit(x, np.zeros((20, 3), "i8"), batch_size=20)
    with pytest.raises(WorkerError, match=r"MSELoss needs the same number of values"):
        estimator(loss=nn.MSELoss()).fit(x, y, batch_size=20)
    nan = estimator(model=lambda config: Bad(), loss=nn.MSELoss())
    with pytest.raises(WorkerError, match="loss became nan in step 1 of epoch 1.*terminate_on_nan=False"):
        nan.fit(x, y.astype("f4"), max_failures=2)
    assert np.isnan(nan.fit(x, y.astype("f4"), terminate_on_nan=False)["loss"][0])
    with pytest.raises(DataError, match="no labels"):
        estimator().fit(x)
    with pytest.raises(ArgumentError, match="feature_cols='z' is not in the data"):
        estimator().fit(pandas.DataFrame({"a": [1.0], "b": [0]}), feature_cols=["z"], label_cols=["b"])
    with pytest.raises(ArgumentError, match="batch_size=1 is smaller than workers=2"):
        estimator().fit(x, y, batch_size=1)
    with pytest.raises(ArgumentError, match="parameters of another model"):
        estimator(model=nn.Linear(6, 2), optimizer=torch.optim.SGD(nn.Linear(6, 2).parameters(), 0.1))
    for options, words in {
        (("precision", "fp8"),): 'expected "fp32", "bf16" or "fp16"',
        (("sharded", True), ("backend", "horovod")): "sharded=True is not an option of backend='horovod'",
        (("mode", "later"), ("backend", "parameter_server")): 'expected "sync" or "async"',
        (("staleness", 2), ("backend", "parameter_server")): 'staleness= is for mode="async"',
        (("workers", 2), ("num_workers", 2)): "Give one of",
        (("scheduler_step", "week"), ("scheduler_creator", len)): 'expected "epoch" or "step"',
        (("optimizer", torch.optim.LBFGS), ("backend", "ps")): "splits parameters into slices",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            estimator(**dict(options))
    for options, words in {
        (("clip_norm", -1),): "clip_norm=-1: expected a number above 0",
        (("clip_value", (2, 1)),): r"clip_value=\(2, 1\)",
        (("accumulate", 0),): "accumulate=0",
        (("max_steps", 0),): "max_steps=0",
        (("checkpoint_trigger", "often"),): "checkpoint_trigger='often'",
        (("resume", "/nowhere/at/all"),): "has no checkpoint in it",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            estimator().fit(x, y, **dict(options))
    with pytest.raises(NotFittedError, match="no weights yet"):
        estimator().get_state_dict()
    with pytest.raises(NotFittedError, match="give example="):
        estimator().export("onnx", "model")


def test_export_output_names_and_state_dict(local: Context, tmp_path):
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


def test_tensorboard_and_summaries(local: Context, tmp_path):
    x, y = make_data(64)
    est = estimator(metrics=["accuracy"])
    with pytest.raises(ArgumentError, match="call set_tensorboard"):
        est.get_train_summary()
    est.set_tensorboard(str(tmp_path), "run")
    history = est.fit(x, y, epochs=2, batch_size=16, validation_data=(x, y))
    points = est.get_train_summary("Loss")
    assert [step for step, _, _ in points][:4] == [1, 2, 3, 4]
    assert np.mean([value for _, value, _ in points[:4]]) == pytest.approx(history["loss"][0], rel=1e-5)
    assert [value for _, value, _ in est.get_validation_summary("accuracy")] == pytest.approx(history["val_accuracy"])
    assert list(tmp_path.rglob("events*"))


def test_the_users_model_object_is_not_touched(local: Context):
    model = nn.Linear(6, 2)
    before = copy.deepcopy(model.state_dict())
    est = estimator(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    est.fit(*make_data(32), batch_size=16)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert not torch.equal(est.get_model().weight, before["weight"])


@pytest.mark.parametrize("sync", BACKENDS)
def test_pieces_are_as_many_on_every_rank(local: Context, sync):
    # The last step has two rows, for one rank alone: the others take part without any of their own.
    x, y = make_data(66)

    def step(model, xs, ys, rows):
        nn.functional.cross_entropy(model(xs), ys).backward()

    est = estimator(sync, workers=3, sync_batchnorm=sync != "sharded")
    est.fit(x, y, epochs=2, batch_size=16, accumulate=2)
    close(est, alone(x, y, step), rtol=1e-4, atol=1e-5)


def test_gradients_of_the_parameter_server_are_shown_and_changed_by_hooks(local: Context):
    class Halve(Callback):
        acts_on_batches = False

        def __init__(self):
            self.norms = []

        def on_gradients(self, run):
            values = [value.grad for value in run.model.parameters()]
            self.norms.append(float(nn.utils.get_total_norm(values)))
            for value in values:
                value.mul_(0.5)

    x, y = make_data(48)
    seen = {sync: Halve() for sync in ("ddp", "server")}
    losses = [estimator(sync).fit(x, y, epochs=2, batch_size=16, callbacks=[seen[sync]])["loss"] for sync in seen]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(seen["ddp"].norms, seen["server"].norms, rtol=1e-4)
    assert losses[0] != estimator().fit(x, y, epochs=2, batch_size=16)["loss"]


class Assign(Callback):
    """Gives parameters other gradients, as objects of their own, and takes them away."""

    acts_on_batches = False

    def before_batch(self, run):
        if run.step == 3:
            run.model.zero_grad()

    def on_gradients(self, run):
        if run.step == 1:
            run.model.zero_grad()
        for value in run.model.parameters():
            if run.step != 1 and value.grad is not None:
                value.grad = value.grad * 0.5

    def after_batch(self, run):
        for value in run.model.parameters():
            value.grad = torch.ones_like(value)


@pytest.mark.parametrize("sync", ["ddp", "server", "async", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_gradients_that_a_hook_assigns_are_used(local: Context, sync):
    x, y = make_data(48)
    # With momentum a gradient of zeros is not the same as none, which slices of parameters cannot tell apart.
    sgd = {"optimizer": torch.optim.SGD, "config": {"lr": 0.5}}
    apart = {"mode": "async", "workers": 1} if sync == "async" else {}
    est = estimator("server" if apart else sync, **apart, **sgd)
    single = estimator(workers=1, **sgd)
    for one in (est, single):
        one.fit(x, y, epochs=2, batch_size=16, callbacks=[Assign()])
    close(est, single.get_model())


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


def test_integers_are_indices_for_embeddings_and_numbers_for_layers(local: Context):
    x = np.arange(40).reshape(20, 2)
    y = (x[:, 0] % 4 == 0).astype("i8")
    plain = estimator(model=lambda config: nn.Linear(2, 2), config={"lr": 1e-4})
    assert np.isfinite(plain.fit(x, y, batch_size=10)["loss"][0])
    embedded = estimator(model=lambda config: nn.Sequential(nn.Embedding(40, 3), nn.Flatten(), nn.Linear(6, 2)))
    assert np.isfinite(embedded.fit(x, y, batch_size=10)["loss"][0])
    assert embedded.predict(x).shape == (20, 2)


def test_options_that_do_not_go_together_are_refused(local: Context):
    x, y = make_data(20)
    for options, words in (
        ({"sharded": True, "compression": "fp16"}, "does not go together with sharded=True"),
        ({"sharded": True, "train_step": gan_step}, "does not go together with sharded=True"),
        ({"backend": "horovod", "compression": "bf16"}, "Horovod compresses to"),
    ):
        with pytest.raises(ArgumentError, match=words):
            estimator(**options)
    with pytest.raises(ArgumentError, match="accumulate= is not for train_step="):
        estimator(train_step=gan_step).fit(x, y, accumulate=2)
    with pytest.raises(ArgumentError, match="nowhere to write to: give model_dir="):
        estimator().fit(x, y, checkpoint_trigger=3)


def test_a_custom_step_takes_pairs_frames_and_validation(local: Context):
    pandas = pytest.importorskip("pandas")

    def plain(step):
        loss = nn.functional.cross_entropy(step.model(step.x), step.y)
        step.minimize(loss)
        return loss

    x, y = make_data(48)
    lr = torch.optim.lr_scheduler
    options = {
        "train_step": plain, "metrics": ["accuracy"],
        "optimizer": lambda model, config: {"only": torch.optim.SGD(model.parameters(), 0.1)},
        "scheduler_creator": lambda optimizers, config: lr.StepLR(optimizers["only"], 1, gamma=0.5),
    }  # fmt: skip
    est = estimator(**options)
    history = est.fit((x, y), epochs=2, batch_size=16, validation_data=(x, y))
    assert "accuracy" not in history.columns
    assert history[-1]["val_accuracy"] > 0.3
    history = est.fit((x, y), epochs=1, batch_size=16)
    assert history["lr"] == pytest.approx([0.025])
    frame = pandas.DataFrame(x, columns=list("abcdef")).assign(label=y)
    found = estimator(**options).fit(frame, feature_cols=list("abcdef"), label_cols="label", epochs=1, batch_size=16)
    np.testing.assert_allclose(
        found["loss"], estimator(**options).fit(x, y, epochs=1, batch_size=16)["loss"], rtol=1e-5
    )
