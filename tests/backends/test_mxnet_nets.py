"""MXNet models: in-place computation, large integers and fixed parameters."""

from __future__ import annotations

import numpy as np
import pytest

from orca.backends.mxnet.nets import GluonNet
from orca.backends.mxnet.symbol_net import SymbolNet
from orca.backends.mxnet.symbols import Graph
from orca.backends.mxnet.tensors import to_mxnet
from orca.context import Context
from orca.errors import ArgumentError, DataError, WorkerError
from orca.shards.adapters.mxnet_data import batches
from tests.conformance.models import make_data
from tests.conformance.mxnet_models import estimator, same_weights

mx = pytest.importorskip("mxnet")
from mxnet import gluon

from tests.conformance.mxnet_models import CONFIG, loss_creator, symbol_creator

LARGE = 2**24 + 1


class HalvesInPlace(gluon.Block):
    """Modifies its input in place."""

    def __init__(self):
        super().__init__()
        self.body = gluon.nn.Dense(2, in_units=6)

    def forward(self, x):
        x *= 0.5
        return self.body(x)


def test_a_model_that_works_in_place_does_not_change_the_data(local: Context):
    x, y = make_data(32)
    before = x.copy()
    net = GluonNet(HalvesInPlace(), loss_creator({}), None)
    first, second = net.run(x[4:12]), net.run(x[4:12])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(x, before)
    # An array that was gathered for one step only is not copied again.
    fresh = x.take([1, 2, 3], axis=0)
    to_mxnet(fresh, np.float32)[:] = 7
    mx.nd.waitall()
    assert (fresh == 7).all()
    est = estimator(1, None, model_creator=lambda config: HalvesInPlace())
    est.fit(x, y, epochs=2, batch_size=8, shuffle=False)
    assert est.evaluate(x, y) == est.evaluate(x, y)


def test_large_integers_stay_int64_in_every_batch_of_their_column(local: Context):
    ids = np.arange(64) % 8
    ids[50] = LARGE
    x, y = make_data(64)

    def look_up(config):
        return gluon.nn.HybridLambda(lambda F, x: F.one_hot(F.cast(x - (x > 100) * (LARGE - 7), "float32"), 8))

    class Classifier(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.ids, self.body = look_up({}), gluon.nn.Dense(2, in_units=8)

        def hybrid_forward(self, F, a, b):
            return self.body(self.ids(a))

    def fit(workers):
        est = estimator(workers, None, model_creator=lambda config: Classifier())
        est.fit({"x": {"a": ids, "b": x}, "y": y}, epochs=1, batch_size=8)
        return est

    same_weights(fit(2), fit(1).get_model())
    with pytest.raises(WorkerError, match=r"a contains integers above 16777216, which float32 cannot represent"):
        dense = {"model_creator": lambda config: gluon.nn.Dense(2)}
        estimator(1, None, **dense).fit({"x": {"a": ids[:, None]}, "y": y}, batch_size=8, max_steps=1)


def test_the_integer_limit_depends_on_the_dtype_of_the_model():
    half = gluon.nn.Dense(2, in_units=1)
    half.cast("float16")
    for block, limit in ((gluon.nn.Dense(2, in_units=1), 2**24), (half, 2**11)):
        net = GluonNet(block, loss_creator({}), None)
        assert net.survey(np.array([[limit]]), [np.array([-limit])]) == []
        assert net.survey(np.array([[limit + 1]]), [np.array([-limit - 1])]) == ["x", "y"]
        assert net.survey([np.zeros((1, 1)), np.array([[limit + 1]])], None) == ["x.1"]
    with pytest.raises(DataError, match="data contains integers above 16777216"):
        SymbolNet(Graph.of(symbol_creator({})), None).run(np.full((2, 6), LARGE))


def fixed_module(config):
    return mx.mod.Module(
        symbol_creator(config), label_names=["softmax_label"], fixed_param_names=["first_weight", "first_bias"]
    )


def test_fixed_parameters_of_a_module_stay_unchanged(local: Context):
    x, y = make_data(48)
    more = {"model_creator": fixed_module, "loss_creator": None, "config": {**CONFIG, "init": mx.init.Xavier()}}
    one = estimator(1, None, **more)
    one.fit(x, y, batch_size=48, max_steps=1)
    before = {name: np.array(value) for name, value in one._learned.state["model"].items()}
    one.fit(x, y, epochs=2, batch_size=8)
    for name, value in one._learned.state["model"].items():
        assert np.array_equal(value, before[name]) == name.startswith("first"), name
    model = one.get_model()
    assert model._fixed_param_names == ["first_weight", "first_bias"]
    two = estimator(2, **more)
    two.fit(x, y, batch_size=48, max_steps=1)
    two.fit(x, y, epochs=2, batch_size=8)
    for name, value in two._learned.state["model"].items():
        np.testing.assert_allclose(value, one._learned.state["model"][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_unsupported_modules_are_refused():
    with pytest.raises(ArgumentError, match="state_names="):
        Graph.of(mx.mod.Module(symbol_creator({}), label_names=["softmax_label"], state_names=["first_bias"]))
    names = [name for name in symbol_creator({}).list_arguments() if name.startswith(("first", "second"))]
    with pytest.raises(ArgumentError, match="names all parameters"):
        Graph.of(mx.mod.Module(symbol_creator({}), label_names=["softmax_label"], fixed_param_names=names))


def test_iterators_that_withhold_rows_are_refused():
    x, y = make_data(10)
    rolling = mx.io.NDArrayIter(x, y, batch_size=4, last_batch_handle="roll_over")
    for source in (rolling, mx.io.ResizeIter(rolling, 3)):
        with pytest.raises(DataError, match='roll_over.*use "pad"'):
            list(batches(source))
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), batch_size=4, last_batch="rollover")
    with pytest.raises(DataError, match='rollover.*use "keep"'):
        list(batches(loader))
    assert sum(len(labels) for _, labels in batches(mx.io.NDArrayIter(x, y, batch_size=4))) == 10


def test_classes_that_the_model_lacks_are_refused(local: Context):
    x, y = make_data(32)
    est = estimator(1, None)
    with pytest.raises(DataError, match=r"y of data= has 1\.5 in row 4; SoftmaxCrossEntropyLoss expects class numbers"):
        est.fit(x, np.where(np.arange(32) == 4, 1.5, y))
    with pytest.raises(DataError, match="class -1 in row 4"):
        est.fit(x, np.where(np.arange(32) == 4, -1, y))
    assert not any(gang.running for gang in local._gangs._gangs.values())
    symbol = estimator(1, None, model_creator=symbol_creator, loss_creator=None)
    for one in (est, symbol):
        for call in (one.fit, one.evaluate):
            with pytest.raises(WorkerError, match="class 7 in row 4; the model has 2 classes, 0 to 1"):
                call(x, np.where(np.arange(32) == 4, 7, y))


class TwoColumns(gluon.Block):
    """Takes one column after another."""

    def __init__(self):
        super().__init__()
        self.body = gluon.nn.Dense(2, in_units=2)

    def forward(self, left, right, *rest):
        return self.body(mx.nd.stack(left, right, axis=1))


@pytest.mark.parametrize("count", [2, 3])
def test_several_columns_are_inputs_of_a_block(local: Context, count):
    pandas = pytest.importorskip("pandas")
    x, y = make_data(32)
    names = ["a", "b", "c"][:count]
    frame = pandas.DataFrame({**dict(zip(names, x.T, strict=False)), "label": y})
    est = estimator(1, None, model_creator=lambda config: TwoColumns())
    assert est.fit(frame, feature_cols=names, label_cols="label", batch_size=8)["rows"] == [32]
    assert len(est.predict(frame, feature_cols=names)) == 32
