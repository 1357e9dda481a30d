"""TensorFlow graphs: what cannot work is refused on the driver, before any rank starts."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import psutil
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import orca.tf1
from orca import Estimator
from orca.context import Context
from orca.errors import ArgumentError, DataError
from tests.conformance.graph_models import Graph, dense, sgd, two_classes, two_inputs
from tests.orca.wrong_values import SHARED, Call, Case, arguments_of, extra, mistakes

with v1.Graph().as_default():
    TINY = v1.placeholder(v1.float32, (None, 2))
CALL = Call(
    "from_graph",
    Estimator.from_graph,
    lambda **changes: Estimator.from_graph(**{"inputs": TINY, "outputs": TINY, **changes}),
    {
        **SHARED,
        "outputs": extra(right="None, empty list"),
        "labels": extra(right="None, empty list"),
        "loss": extra([], right="None"),
        "optimizer": extra({"net/": 3}, {}, right="None"),
        "metrics": extra([None], ["no"], {"mine": None}, right="None, empty list, empty dict"),
        "clip_value": extra((1, 0), (float("nan"), 1.0)),
        "clip_norm": extra(0.0, -1.0, float("nan")),
        "updates": extra([3], right="None, empty list"),
        "sess": extra(right="None"),
        "feed_dict": extra({"no": 1}, right="None, empty dict"),
        "model_path": extra(choices=True),
        "signature": extra(),
        "backend": extra([], "graph", choices=True),
    },
    skip=("config",),
)
X, Y = np.zeros((20, 6), "f4"), np.zeros(20, "i8")
EAGER = tf.constant(X)


@pytest.fixture(autouse=True)
def no_rank_starts(local: Context):
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before, "a rank was started"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return two_classes()


@pytest.mark.parametrize("missing", ["labels", "loss", "optimizer"])
def test_fit_names_what_is_missing(graph: Graph, missing: str):
    tensors = {**graph.tensors, "optimizer": sgd(), missing: None}
    if missing == "labels":
        tensors["loss"] = None
    words = f"{missing} is None; it should not be None in training"
    with pytest.raises(ArgumentError, match=words):
        Estimator.from_graph(**tensors).fit(X, Y)


def test_predict_needs_outputs(graph: Graph):
    est = Estimator.from_graph(**{**graph.tensors, "outputs": None})
    with pytest.raises(ArgumentError, match="outputs is None"):
        est.predict(X)


@pytest.mark.parametrize("cases", arguments_of([CALL]))
def test_a_wrong_value_is_refused_before_anything_starts(cases: list[Case]):
    assert cases
    assert mistakes(cases) == []


def in_graph(make):
    """Build a graph whose parts `make` changes, with placeholders x and y."""
    graph = v1.Graph()
    with graph.as_default():
        x, y = v1.placeholder(v1.float32, (None, 6), "x"), v1.placeholder(v1.float32, (None,), "y")
        tensors = {"inputs": x, "labels": y, "optimizer": sgd()}
        return {**tensors, **make(x, y)}


def squared(x, y):
    return v1.reduce_mean(v1.square(dense(x, 1, "out")[:, 0] - y))


WRONG = {
    "an unfed placeholder": (
        lambda x, y: {"loss": squared(x * v1.placeholder(v1.float32, (), "keep"), y)},
        "Nobody feeds the placeholder 'keep'.*feed_dict=",
    ),
    "a loss per row": (
        lambda x, y: {"loss": v1.square(dense(x, 1, "out")[:, 0] - y)},
        r"loss='.*' has shape \(None,\); expected a scalar",
    ),
    "no variable": (lambda x, y: {"loss": v1.reduce_mean(x) * 1.0}, "depends on no trainable variable.* none"),
    "a Python function": (
        lambda x, y: {"loss": squared(v1.ensure_shape(v1.py_func(np.sin, [x], v1.float32, name="wave"), x.shape), y)},
        r"calls Python functions.*wave \(PyFunc\)",
    ),
    "a Keras optimizer": (
        lambda x, y: {"loss": squared(x, y), "optimizer": keras.optimizers.Adam()},
        "is a Keras optimizer.*tf.train.AdamOptimizer",
    ),
    "a wrong optimizer": (lambda x, y: {"loss": squared(x, y), "optimizer": "adam"}, "optimizer='adam'.*tf.train"),
    "a wrong range": (lambda x, y: {"loss": squared(x, y), "clip_value": (1, 0)}, r"clip_value=\(1, 0\)"),
    "an eager tensor": (
        lambda x, y: {"loss": squared(x, y), "inputs": EAGER},
        r"inputs= is an eager tensor.*tf.Graph\(\)",
    ),
    "a fixed batch": (
        lambda x, y: {"loss": squared(x, y), "inputs": v1.placeholder(v1.float32, (32, 6))},
        r"fixed number of rows.*\(None, 6\)",
    ),
    "a wrong name": (lambda x, y: {"loss": squared(x, y), "inputs": "z"}, "inputs='z' is not a tensor of the graph"),
    "a wrong feed": (
        lambda x, y: {"loss": squared(x, y), "feed_dict": {"x": np.zeros(3)}},
        r"feed_dict\['x'\].*its shape is \(3,\)",
    ),
    "no inputs": (lambda x, y: {"loss": squared(x, y), "inputs": None}, "from_graph needs inputs="),
    "a wrong session": (lambda x, y: {"loss": squared(x, y), "sess": 3}, "sess=3.*tf.Session"),
    "an unknown option": (lambda x, y: {"loss": squared(x, y), "optimiser": 3}, "optimiser=3 .*Did you mean"),
    "a missing file": (lambda x, y: {"model_path": "/nowhere"}, "model_path='/nowhere' is not a SavedModel"),
}


@pytest.mark.parametrize("what", WRONG)
def test_graphs_that_cannot_work_are_refused(what: str):
    make, words = WRONG[what]
    with pytest.raises((ArgumentError, DataError), match=words):
        Estimator.from_graph(**in_graph(make))


def test_tensors_of_two_graphs_are_refused(graph: Graph):
    with pytest.raises(ArgumentError, match=r"loss='.*' belongs to another graph than inputs='net/x:0'"):
        Estimator.from_graph(**{**graph.tensors, "loss": two_classes().tensors["loss"]})


def test_rows_that_do_not_fit_are_refused(graph: Graph):
    est = graph.estimator(sgd(), 1)
    with pytest.raises(DataError, match=r"rows of shape \(5,\) for the graph's input 'net/x'.*\(6\)"):
        est.fit(X[:, :5], Y)
    with pytest.raises(DataError, match=r"rows of shape \(6, 2\) for the graph's input"):
        est.fit(np.zeros((20, 6, 2)), Y)
    with pytest.raises(DataError, match=r"rows of shape \(5,\) for the graph's input"):
        est.predict(X[:, :5])
    with pytest.raises(DataError, match=r"y of data= has 0.5 in row 0, but the model takes int64"):
        est.fit(X, Y + 0.5)
    with pytest.raises(DataError, match="no entry for the graph's input 'right'"):
        two_inputs().estimator(sgd(), 1).fit({"x": {"left": X[:, :2]}, "y": Y})


def test_integers_outside_of_the_placeholders_type_name_column_and_value():
    with v1.Graph().as_default():
        ids, y = v1.placeholder(v1.int32, (None,), "ids"), v1.placeholder(v1.float32, (None,), "y")
        score = v1.gather(v1.get_variable("table", (10,)), ids)
        loss = v1.reduce_mean(v1.square(score - y))
    est = Estimator.from_graph(inputs=ids, outputs=score, labels=y, loss=loss, optimizer=sgd())
    frame = pd.DataFrame({"user": [1, 2**40], "rating": [0.0, 1.0]})
    with pytest.raises(DataError, match=r"Column 'user' of data= has 1099511627776 in row 1, .*int32"):
        est.fit(frame, feature_cols=["user"], label_cols=["rating"])
    with pytest.raises(DataError, match=r"x of data= has -3000000000 in row 0, .*int32"):
        est.predict(np.array([-3_000_000_000]))


def test_what_graphs_do_not_support_is_refused(graph: Graph):
    est = graph.estimator(sgd(), 1)
    for more in ({"sample_weight": np.ones(20)}, {"class_weight": {0: 2.0}}):
        with pytest.raises(ArgumentError, match="not supported for graphs"):
            est.fit(X, Y, **more)
    with pytest.raises(AttributeError, match="tf.estimator was removed"):
        orca.tf1.estimator  # noqa: B018


def test_random_operations_without_a_saved_state_are_named(caplog: pytest.LogCaptureFixture):
    Estimator.from_graph(**in_graph(lambda x, y: {"loss": squared(v1.random_shuffle(x, name="mixed"), y)}))
    assert "mixed (RandomShuffle)" in caplog.text
