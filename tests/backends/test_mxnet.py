"""MXNet specifics: Gluon and Symbol models, data, metrics, files, export and error messages."""

from __future__ import annotations

import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest

from orca import XShards, create_config
from orca.backends.mxnet import numpy_compat
from orca.backends.mxnet.kvstore import merge_server_states
from orca.context import Context, OrcaContext
from orca.errors import ArgumentError, NotFittedError, ResourceError, WorkerError
from tests.conformance.models import global_order, make_data
from tests.conformance.mxnet_models import (
    CONFIG,
    SEED,
    TwoIn,
    estimator,
    half,
    loss_creator,
    model_creator,
    module_creator,
    probabilities,
    same_weights,
    symbol_creator,
)

mx = pytest.importorskip("mxnet")
from mxnet import gluon


def train_module(x, y, epochs, batch_size, values, params):
    """Train with Module itself, in one process, on the same batches."""
    module = module_creator({})
    module.bind([("data", (batch_size, x.shape[1]))], [("softmax_label", (batch_size,))])
    module.init_params(arg_params={name: mx.nd.array(value) for name, value in values.items()})
    module.init_optimizer(kvstore=None, optimizer="sgd", optimizer_params=params)
    for epoch in range(epochs):
        order = global_order(len(x), batch_size, SEED, epoch, True)
        for start in range(0, len(x), batch_size):
            index = order[start : start + batch_size]
            batch = mx.io.DataBatch([mx.nd.array(x[index])], [mx.nd.array(y[index])])
            module.forward_backward(batch)
            module.update()
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


@pytest.mark.parametrize("creator", [symbol_creator, module_creator])
def test_symbols_and_modules_match_training_with_module(local: Context, creator, tmp_path):
    x, y = make_data(96)
    params = {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01}
    config = create_config("sgd", params, log_interval=0, extra_config={"init": mx.init.Xavier()})
    first = estimator(1, None, model_creator=creator, loss_creator=None, config=config)
    first.fit(x, y, epochs=1, batch_size=96, max_steps=1)
    values = {name: np.array(value) for name, value in first._learned.state["model"].items()}
    start = str(tmp_path / "start.params")
    first.save(start)
    est = estimator(2, model_creator=creator, loss_creator=None, config=config)
    est.load(start)
    history = est.fit(x, y, epochs=3, batch_size=16, validation_data=(x, y))
    expected = train_module(x, y, 3, 16, values, params)
    for name, value in est._learned.state["model"].items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    output = est.predict(x)
    np.testing.assert_allclose(output.sum(axis=1), 1, rtol=1e-5)
    assert history[-1]["val_loss"] == pytest.approx(-np.log(output[np.arange(96), y]).mean(), rel=1e-4)
    assert history[-1]["val_accuracy"] == pytest.approx((output.argmax(1) == y).mean())
    module = est.get_model()
    module.bind([("data", (96, 6))], [("softmax_label", (96,))], for_training=False)
    module.set_params(module._arg_params, module._aux_params)
    module.forward(mx.io.DataBatch([mx.nd.array(x)], None), is_train=False)
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), output, rtol=1e-5, atol=1e-6)


def test_every_kind_of_data_gives_the_same_model(local: Context):
    x, y = make_data(50)
    frame = pd.DataFrame({f"c{number}": x[:, number] for number in range(6)} | {"label": y})
    columns = {"feature_cols": [f"c{number}" for number in range(6)], "label_cols": ["label"]}
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y.astype("f4")), batch_size=7)

    def creator(config, kv):
        assert (kv.rank, kv.num_workers) == (0, 1), "each worker returns all rows, and takes its share"
        # The last batch is padded with earlier rows, which must not count twice.
        return mx.io.NDArrayIter(x, y, batch_size=config["batch_size"])

    inputs = [
        ((x, y), {}),
        (creator, {}),
        (loader, {}),
        (lambda config, kv: loader, {}),
        (XShards.partition({"x": x, "y": y}, num_shards=3), {}),
        (frame, columns),
    ]
    models = []
    for data, more in inputs:
        est = estimator(2)
        # What an iterator of a creator yields keeps its order.
        history = est.fit(data, epochs=1, batch_size=16, shuffle=False, train_resize_batch_num=3, **more)
        assert history["rows"] == [50]
        models.append(est)
    for est in models[1:]:
        same_weights(est, models[0].get_model())


def test_plain_blocks_weights_clipping_and_accumulation_match_one_worker(local: Context):
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            self.body = gluon.nn.Dense(2, in_units=6)

        def forward(self, x):
            return self.body(x)

    x, y = make_data(64)
    weights = np.linspace(0.1, 2, 64)

    def fit(workers, **more):
        est = estimator(workers, None, model_creator=lambda config: Plain())
        est.fit(x, y, epochs=2, batch_size=16, **more)
        return est

    for more in (
        {"sample_weight": weights},
        {"class_weight": {0: 0.2, 1: 3.0}},
        {"clip_norm": 0.1},
        {"clip_value": 0.01},
        {"accumulate": 3},
    ):
        same_weights(fit(2, **more), fit(1, **more).get_model(), str(more))


class Either(gluon.Block):
    """Uses one of its two layers, chosen by the first row."""

    def __init__(self):
        super().__init__()
        self.left, self.right = gluon.nn.Dense(2, in_units=6), gluon.nn.Dense(2, in_units=6)

    def forward(self, x):
        return self.left(x) if x[0, 0].asscalar() > 0 else self.right(x)


@pytest.mark.parametrize("workers", [1, 2])
def test_layers_that_a_step_does_not_use_have_no_gradient(local: Context, workers):
    x, y = make_data(64)
    est = estimator(workers, None, model_creator=lambda config: Either())
    est.fit(x, y, epochs=1, batch_size=8, shuffle=False)
    mx.random.seed(SEED)
    net, loss = Either(), loss_creator({})
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), CONFIG["optimizer"], CONFIG["optimizer_params"])
    size = 8 // workers
    for start in range(0, 64, 8):
        net.collect_params().zero_grad()
        with mx.autograd.record():
            shares = [slice(low, low + size) for low in range(start, start + 8, size)]
            losses = [loss(net(mx.nd.array(x[share])), mx.nd.array(y[share])) for share in shares]
        mx.autograd.backward(losses)
        for parameter in net.collect_params().values():
            parameter.data()._fresh_grad = True  # so that Trainer accepts zeros too
        trainer.step(8)
    same_weights(est, net)


def test_two_inputs_and_two_outputs(local: Context, tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 3)).astype("f4"), rng.normal(size=(40, 2)).astype("f4")
    y = (a.sum(1) - b.sum(1)).astype("f4")
    inner = gluon.loss.L2Loss()
    est = estimator(
        2,
        model_creator=lambda config: TwoIn(),
        loss_creator=lambda config: lambda outputs, label: inner(outputs[0], label),
        metrics=None,
        config=create_config("adam", {"learning_rate": 0.05}, log_interval=0),
    )
    history = est.fit({"x": {"b": b, "a": a}, "y": y}, epochs=30, batch_size=8)
    assert history["loss"][-1] < history["loss"][0] / 5
    first, second = est.predict({"b": b, "a": a})
    np.testing.assert_allclose(second, np.maximum(a, 0).sum(1), rtol=1e-5)
    assert np.abs(first[:, 0] - y).mean() < 1
    path = est.export("onnx", str(tmp_path / "two"))
    import onnx

    graph = onnx.load(path).graph
    weights = {value.name for value in graph.initializer}
    assert [value.name for value in graph.input if value.name not in weights] == ["data0", "data1"]


def test_onnx_and_openvino_exports_give_the_same_predictions(local: Context, tmp_path):
    import openvino

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 1, 12, 12)).astype("f4"), rng.integers(0, 3, 64)

    def net(config):
        block = gluon.nn.HybridSequential()
        block.add(
            gluon.nn.Conv2D(4, 3, activation="relu"),
            gluon.nn.BatchNorm(),
            gluon.nn.MaxPool2D(),
            gluon.nn.Flatten(),
            gluon.nn.Dropout(0.2),
            gluon.nn.Dense(3),
        )
        return block

    def symbol(config):
        flat = mx.sym.Flatten(mx.sym.var("data"))
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(flat, num_hidden=3, name="only"), name="softmax")

    for creator, loss in ((net, loss_creator), (symbol, None)):
        est = estimator(2, model_creator=creator, loss_creator=loss)
        est.fit(x, y, epochs=2, batch_size=16)
        output = est.predict(x)
        for kind in ("onnx", "openvino"):
            path = est.export(kind, str(tmp_path / "model"))
            exported = openvino.compile_model(path, config={"INFERENCE_PRECISION_HINT": "f32"})(x[:50])[0]
            np.testing.assert_allclose(exported, output[:50], atol=1e-4, err_msg=kind)
    with pytest.raises(ArgumentError, match='expected "onnx" or "openvino"'):
        est.export("torchscript", str(tmp_path / "model"))


def test_training_continues_from_saved_states_and_files(local: Context, tmp_path):
    x, y = make_data(64)
    unbroken = estimator(2)
    unbroken.fit(x, y, epochs=4, batch_size=16)
    first = estimator(1, None, model_dir=str(tmp_path / "run"))
    first.fit(x, y, epochs=2, batch_size=16)
    first.save(str(tmp_path / "half"))
    second = estimator(2).load(str(tmp_path / "half"))
    assert second.epoch == 2
    second.fit(x, y, epochs=2, batch_size=16)
    same_weights(second, unbroken.get_model())
    # The same gang continues with newly loaded weights.
    second.load(str(tmp_path / "half"))
    second.fit(x, y, epochs=2, batch_size=16)
    same_weights(second, unbroken.get_model())
    path = str(tmp_path / "net.params")
    second.save(path)
    net = model_creator({})
    net.load_parameters(path)
    np.testing.assert_allclose(net(mx.nd.array(x)).asnumpy(), second.predict(x), rtol=1e-4, atol=1e-6)
    third = estimator(1, None).load(path)
    np.testing.assert_allclose(third.predict(x), second.predict(x), rtol=1e-5, atol=1e-6)


def test_mxnet_metrics_are_exact(local: Context):
    x, y = make_data(70)
    est = estimator(
        3,
        metrics=None,
        eval_metrics_creator=lambda config: [mx.metric.Accuracy(), mx.metric.F1(), mx.metric.TopKAccuracy(2)],
        validation_metrics_creator=lambda config: mx.metric.create(["acc", mx.metric.CustomMetric(half, "half")]),
        model_creator=probabilities,
        loss_creator=lambda config: gluon.loss.SoftmaxCrossEntropyLoss(from_logits=False),
    )
    est.fit(x, y, epochs=2, batch_size=16)
    scores = est.evaluate(x, y, batch_size=9)
    output = est.predict(x)
    expected = {"loss": scores["loss"]}
    for metric in (mx.metric.Accuracy(), mx.metric.F1(), mx.metric.CustomMetric(half, "half")):
        metric.update([mx.nd.array(y)], [mx.nd.array(output)])
        expected[metric.get()[0]] = metric.get()[1]
    assert scores.pop("top_k_accuracy_2") == 1.0
    assert scores == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_printed_every_log_interval_steps(local: Context, capfd, monkeypatch):
    monkeypatch.setattr(OrcaContext, "log_output", True)
    x, y = make_data(64)
    est = estimator(2, config={**CONFIG, "log_interval": 2})
    est.fit(x, y, epochs=1, batch_size=8)
    lines = [line for line in capfd.readouterr().out.splitlines() if "epoch 1, step" in line]
    assert len(lines) == 4
    assert "epoch 1, step 2: loss 0." in lines[0]


def test_servers_need_no_slots(local: Context):
    est = estimator(7, 2)
    with pytest.raises(ResourceError, match=r"workers=7 does not fit: the local runtime has 6 slots.*cores=7"):
        est.fit(*make_data(28), batch_size=14)
    text = est.explain()
    assert "runtime local: 7 of 6 slots; 3 more ranks serve the workers and need none" in text
    assert "will not start: the local runtime has 6 slots. Use workers=6" in text
    assert "rendezvous: a port held by the scheduler" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_creator": 3}, "model_creator=3"),
        ({"config": create_config("sgdd")}, "optimizer='sgdd' is not one of MXNet's"),
        ({"config": create_config("sgd", {"rate": 1})}, "optimizer_params="),
        ({"config": create_config("sgd", {"rescale_grad": 0.5})}, "must not set rescale_grad"),
        ({"kvstore": "local"}, "kvstore='local': expected \"dist_sync\""),
        ({"num_servers": 0}, "num_servers=0"),
        ({"compression": "fp16"}, "compression='fp16' is not an option"),
        ({"backend": "ddp"}, "backend='ddp' is not known for mxnet"),
    ],
)
def test_bad_arguments_are_reported_before_launch(more, message):
    with pytest.raises(ArgumentError, match=message):
        estimator(2, **more)


def test_bad_models_and_data_are_reported(local: Context):
    x, y = make_data(32)
    with pytest.raises(ArgumentError, match="fit needs loss_creator="):
        estimator(1, None, loss_creator=None).fit(x, y)
    with pytest.raises(WorkerError, match="model_creator= gave a int"):
        estimator(1, None, model_creator=lambda config: 3).fit(x, y)
    with pytest.raises(ArgumentError, match="are for Gluon models"):
        est = estimator(1, None, model_creator=symbol_creator, loss_creator=None)
        est.fit(x, y, sample_weight=np.ones(32))
    with pytest.raises(WorkerError, match=r'normalization="valid"'):
        config = {**CONFIG, "normalization": "valid"}
        estimator(1, None, model_creator=symbol_creator, loss_creator=None, config=config).fit(x, y)
    with pytest.raises(WorkerError, match="raised DataError: .* returned a NoneType"):
        estimator(1, None).fit(lambda config, kv: None)
    with pytest.raises(WorkerError, match="sparse gradients"):
        estimator(1, None, model_creator=lambda config: gluon.nn.Embedding(5, 2, sparse_grad=True)).fit(x, y)


def test_importing_mxnet_leaves_numpy_unchanged():
    program = (
        "import numpy, orca; from orca.backends.mxnet.numpy_compat import _dropped; before = set(_dropped(numpy)); "
        "import mxnet; import mxnet.gluon.contrib.estimator; print(len(before) > 25, before == set(_dropped(numpy))); "
        "print(mxnet.nd.moveaxis(mxnet.nd.zeros((2, 3)), 0, 1).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True", "(3, 2)"]


def test_a_numpy_without_the_new_names_keeps_its_old_ones():
    """Like numpy 1.26, which has trapz and no trapezoid."""
    old = {name: getattr(np, name) for name in dir(np) if name != "trapezoid"}
    numpy = types.SimpleNamespace(**old, trapz=np.trapezoid, float_=np.float64)
    dropped = numpy_compat._dropped(numpy)
    assert "product" in dropped
    assert not {"trapz", "float_"} & set(dropped)
    del numpy.trapz
    assert "trapz" not in numpy_compat._dropped(numpy)


def test_server_states_are_merged():
    """Slices of a big array are concatenated in server order; a small array is stored on one server."""
    base = {"numbers": {"lr": 0.1}, "schedule": None}
    late = {"server": 1, "states": {"0": [np.array([3.0, 4.0])], "2": None}, "counts": {"0": 5, "2": 5}, **base}
    early = {"server": 0, "states": {"0": [np.array([1.0, 2.0])]}, "counts": {"0": 5}, **base}
    merged = merge_server_states([None, None, late, early, None])
    np.testing.assert_array_equal(merged["states"]["0"][0], [1, 2, 3, 4])
    assert merged["states"]["2"] is None
    assert merged["counts"] == {"0": 5, "2": 5}


def test_openvino_predictions_match_mxnet(local: Context):
    x, y = make_data(60)
    symbol = {"model_creator": symbol_creator, "loss_creator": None}
    for more in ({}, symbol):
        est = estimator(1, None, **more)
        est.fit(x, y, epochs=2, batch_size=20)
        expected = est.predict(x)
        np.testing.assert_allclose(est.predict(x, accelerator="openvino"), expected, atol=1e-5)
        shards = est.predict(XShards.partition({"x": x}, num_shards=2), accelerator="openvino")
        np.testing.assert_allclose(shards.to_numpy()["prediction"], expected, atol=1e-5)
    with pytest.raises(NotFittedError, match="call fit or load first"):
        estimator(1, None, **symbol).predict(x, accelerator="openvino")
