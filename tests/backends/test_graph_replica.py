"""One replica of a graph in this process: control flow, lookup tables, and random numbers that resume."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as v1

from orca import Estimator
from orca.backends.graph.replica import GraphReplica
from orca.shards.feed import Batch
from tests.conformance.graph_models import sgd, two_inputs

X = np.random.default_rng(0).normal(size=(16, 4)).astype("f4")


@pytest.fixture
def control_flow(request: pytest.FixtureRequest):
    """Old or new control flow, as the user's program has chosen it."""
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield
    v1.enable_control_flow_v2()


def flowing_graph(resource: bool):
    """A graph with a condition, a loop, random numbers in both, and a lookup table."""
    with v1.Graph().as_default():
        v1.set_random_seed(1)
        x, training = v1.placeholder(v1.float32, (None, 4), "x"), v1.placeholder(v1.bool, (), "training")
        hidden = x @ v1.get_variable("w", (4, 3), use_resource=resource)
        hidden = v1.cond(training, lambda: v1.nn.dropout(hidden, rate=0.5), lambda: v1.identity(hidden))
        _, hidden = v1.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, h * 1.1 + 0.1 * v1.random_uniform(v1.shape(h))),
            [0, hidden],
        )
        entries = v1.lookup.KeyValueTensorInitializer([1, 2], [3, 4], v1.int64, v1.int64)
        table = v1.lookup.StaticHashTable(entries, 0)
        embedded = v1.gather(
            v1.get_variable("e", (5, 3), use_resource=resource), table.lookup(v1.constant([1], v1.int64))
        )
        outputs = hidden + embedded
        return Estimator.from_graph(
            inputs=x,
            outputs=outputs,
            labels=[],
            loss=v1.reduce_mean(v1.square(outputs)),
            optimizer=v1.train.AdamOptimizer(0.1),
            feed_dict={training: (True, False)},
            seed=1,
        )


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("control_flow", [True, False], indirect=True)
def test_random_numbers_in_conditions_and_loops_resume_exactly(control_flow, resource: bool):
    spec = flowing_graph(resource).spec
    assert len(spec.program.randoms) == 2
    results = []
    for stop in (None, 3):
        replica = GraphReplica(spec, 1)
        replica.reseed(1, 0, 0)
        losses = []
        for step in range(6):
            if step == stop:
                state, randoms = replica.state(), replica.random_state()
                replica = GraphReplica(spec, 7)
                replica.load_state(state)
                replica.load_random_state(randoms)
            losses.append(replica.train_step(Batch({"x": X}, 16, 16), False).loss_sum)
        results.append((losses, {name: value.tobytes() for name, value in replica.state()["model"].items()}))
    assert results[0] == results[1]
    assert len(set(results[0][0])) == 6


def test_initial_values_follow_the_seed():
    def weights(seed: int) -> list[bytes]:
        with v1.Graph().as_default():
            x = v1.placeholder(v1.float32, (None, 4), "x")
            y = x @ v1.get_variable("w", (4, 2))  # an initializer without a seed
            est = Estimator.from_graph(inputs=x, outputs=y, seed=seed)
        replica = GraphReplica(est.spec, seed)
        return [value.tobytes() for value in replica.state()["model"].values()]

    assert weights(1) == weights(1) != weights(2)


def test_a_replica_without_labels_predicts_what_the_session_does():
    graph = two_inputs()
    est = graph.estimator(sgd(), 1, seed=0)
    features = {"left": X[:, :2], "right": X}
    outputs = GraphReplica(est.spec, 0, trains=False).predict_step(features)
    feeds = {graph.tensors["inputs"][name].name: value for name, value in features.items()}
    expected = est.sess.run({name: tensor.name for name, tensor in graph.tensors["outputs"].items()}, feeds)
    for name, value in outputs.items():
        np.testing.assert_array_equal(value, expected[name], name)
