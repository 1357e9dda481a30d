"""TensorFlow graphs: equal to a hand-written session loop, exact metrics, sessions and files of the user."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as v1
from sklearn.base import clone
from sklearn.metrics import accuracy_score

from orca import Estimator, XShards
from orca.callbacks import Callback, Run
from orca.context import Context
from orca.errors import ArgumentError, DataError
from orca.testing.cases import batches, cut, make_data
from orca.triggers import SeveralIteration
from tests.conformance.graph_models import Graph, dense, sgd, train_on, two_classes, two_inputs

SEED = 3
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": sgd,
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}


class Fingerprint(Callback):
    """Writes a digest of each rank's whole state to a file."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_run(self, run: Run) -> None:
        state = run.snapshot()
        digest = hashlib.sha256()
        for values in (state["model"], state["optimizer"]):
            for name in sorted(values):
                digest.update(np.ascontiguousarray(values[name]).tobytes())
        with open(f"{self.folder}/{run.world}-{run.rank}", "w") as file:
            file.write(digest.hexdigest())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_twenty_steps_equal_a_session_loop(local: Context, optimizer: str, tmp_path):
    x, y = make_data(98, "int64")
    graph = two_classes(resource=optimizer != "momentum")
    order = list(batches(x, y, epochs=4, batch_size=20, seed=SEED))  # 5 steps an epoch, the last of 18 rows
    expected = train_on(order, graph, OPTIMIZERS[optimizer](), 20)
    for workers in (1, 2, 3):
        est = graph.estimator(OPTIMIZERS[optimizer](), workers, seed=SEED)
        est.fit(cut(x, y, (41, 0, 50, 7)), epochs=4, batch_size=20, callbacks=[Fingerprint(str(tmp_path))])
        assert est.step == 20
        digests = {(tmp_path / f"{workers}-{rank}").read_text() for rank in range(workers)}
        assert len(digests) == 1, "ranks differ"
        for name, value in est.get_state_dict().items():
            if workers == 1:
                np.testing.assert_array_equal(value, expected[name], name)
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=f"{workers} workers, {name}")


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_in_pieces_equal_whole_steps(local: Context, workers: int):
    x, y = make_data(97, "int64")  # the last step has one row
    graph, metrics = scored_graph()
    options = {"seed": SEED, "clip_norm": 0.5, "metrics": metrics}
    whole, cut_up = (graph.estimator(OPTIMIZERS["adam"](), workers, **options) for _ in range(2))
    expected = whole.fit(x, y, epochs=2, batch_size=24)
    history = cut_up.fit(x, y, epochs=1, batch_size=24, accumulate=3)
    assert cut_up.step == 5
    history = cut_up.fit(x, y, epochs=1, batch_size=24, accumulate=5)
    for name, value in whole.get_state_dict().items():
        np.testing.assert_allclose(cut_up.get_state_dict()[name], value, rtol=0, atol=1e-6, err_msg=name)
    for name in ("loss", *metrics):
        assert history[name][-1] == pytest.approx(expected[name][-1], abs=1e-6), name


def test_pieces_of_a_step_update_moving_averages(local: Context):
    _, tensors = normalized_graph()
    x, y = make_data(48, "int64")
    est = Estimator.from_graph(optimizer=v1.train.GradientDescentOptimizer(0.0), seed=SEED, **tensors)
    est.fit(x, y, epochs=1, batch_size=48, accumulate=4, shuffle=False)
    smaller = Estimator.from_graph(optimizer=v1.train.GradientDescentOptimizer(0.0), seed=SEED, **tensors)
    smaller.fit(x, y, epochs=1, batch_size=12, shuffle=False)
    moving = [name for name in est.get_state_dict() if "moving" in name]
    assert len(moving) == 2
    for name in moving:
        np.testing.assert_array_equal(est.get_state_dict()[name], smaller.get_state_dict()[name], name)
        assert np.abs(est.get_state_dict()[name]).max() > 1e-3


def scored_graph():
    """A graph with a metric of each kind."""
    graph = two_classes()
    with graph.graph.as_default():
        y, logits = graph.tensors["labels"], graph.tensors["outputs"]
        predicted = v1.argmax(logits, 1)
        hits = v1.cast(v1.equal(predicted, y), v1.float32)
        metrics = {
            "acc": v1.reduce_mean(hits),
            "by_row": hits,
            "stream": v1.metrics.accuracy(y, predicted),
            "auc": v1.metrics.auc(y, v1.nn.softmax(logits)[:, 1]),
            "mine": "accuracy",
        }
    return graph, metrics


def test_metrics_of_all_kinds_are_those_of_all_rows(local: Context):
    graph, metrics = scored_graph()
    x, y = make_data(211, "int64")
    shards = cut(x, y, (3, 0, 70, 28, 1, 60, 49))
    est = graph.estimator(sgd(), 3, seed=SEED, metrics=metrics)
    history = est.fit(shards, epochs=1, batch_size=32, validation_data=shards)
    scores = est.evaluate(shards, batch_size=7)
    outputs = est.predict(x)
    accuracy = accuracy_score(y, outputs.argmax(1))
    for name in ("acc", "by_row", "stream", "mine"):
        assert scores[name] == pytest.approx(accuracy, abs=1e-6), name
        assert history[-1][f"val_{name}"] == pytest.approx(accuracy, abs=1e-6), name
        assert 0 < history[-1][name] < 1
    session = est.sess
    with graph.graph.as_default():
        session.run(v1.local_variables_initializer())
        session.run(metrics["auc"][1], {"net/x:0": x, "net/y:0": y})
        assert scores["auc"] == pytest.approx(float(session.run(metrics["auc"][0])), abs=1e-6)


def normalized_graph(resource: bool = True):
    """A graph with batch normalization and dropout behind a switch."""
    import orca.tf1 as tf

    graph = v1.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=resource):
        v1.set_random_seed(5)
        x, y = v1.placeholder(v1.float32, (None, 6), "x"), v1.placeholder(v1.int64, (None,), "y")
        training = v1.placeholder(v1.bool, (), "training")
        hidden = tf.layers.batch_normalization(dense(x, 30, "hidden"), training=training, momentum=0.9)
        hidden = tf.layers.dropout(hidden, 0.4, training=training)
        logits = dense(hidden, 2, "out")
        loss = v1.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
        tensors = {"inputs": x, "outputs": logits, "labels": y, "loss": loss, "feed_dict": {training: (True, False)}}
    return graph, tensors


def test_batch_norm_is_updated_and_dropout_is_off_outside_of_training(local: Context, tmp_path):
    graph, tensors = normalized_graph()
    operations = len(graph.get_operations())
    x, y = make_data(96, "int64")
    est = Estimator.from_graph(optimizer=sgd(), seed=SEED, workers=2, **tensors)
    est.fit(x, y, epochs=2, batch_size=16)
    state = est.get_state_dict()
    moving = [name for name in state if "moving_mean" in name]
    assert moving
    assert np.abs(state[moving[0]]).max() > 1e-3
    first = est.predict(x)
    np.testing.assert_array_equal(est.predict(x), first)
    other = Estimator.from_graph(optimizer=sgd(), workers=1, **tensors).load(est.save(str(tmp_path / "state")))
    np.testing.assert_array_equal(other.predict(x), first)
    assert other.evaluate(x, y) == pytest.approx(est.evaluate(x, y), rel=1e-6)
    assert len(graph.get_operations()) == operations


def test_one_worker_updates_moving_averages_as_a_session_does(local: Context):
    import orca.tf1 as tf

    graph = v1.Graph()
    with graph.as_default():
        v1.set_random_seed(5)
        x, y = v1.placeholder(v1.float32, (None, 6), "x"), v1.placeholder(v1.int64, (None,), "y")
        logits = dense(tf.layers.batch_normalization(dense(x, 8, "hidden"), training=True), 2, "out")
        loss = v1.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    graph = Graph(graph, {"inputs": x, "outputs": logits, "labels": y, "loss": loss})
    rows = make_data(60, "int64")
    expected = train_on(batches(*rows, epochs=2, batch_size=16, seed=SEED), graph, sgd())
    est = graph.estimator(sgd(), 1, seed=SEED)
    est.fit(*rows, epochs=2, batch_size=16)
    for name, value in est.get_state_dict().items():
        np.testing.assert_array_equal(value, expected[name], name)


def test_a_given_session_begins_and_receives_the_values(local: Context, tmp_path):
    graph = two_classes()
    x, y = make_data(40, "int64")
    with graph.graph.as_default():
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        session.run(
            v1.global_variables()[0].initializer, {v1.global_variables()[0].initial_value: np.full((6, 8), 0.1)}
        )
        saver = v1.train.Saver()
    est = graph.estimator(sgd(), 2, sess=session, seed=SEED)
    est.fit(x, y, epochs=1, batch_size=16)
    assert est.sess is session
    weights = est.get_state_dict()["net/hidden/w"]
    np.testing.assert_array_equal(session.run("net/hidden/w/Read/ReadVariableOp:0"), weights)
    with graph.graph.as_default():
        path = saver.save(session, str(tmp_path / "model"))
    fresh = two_classes(seed=9).estimator(sgd(), 1).load_tf_checkpoint(path)
    np.testing.assert_array_equal(fresh.predict(x), est.predict(x))
    again = two_classes(seed=8).estimator(sgd(), 1)
    again.load_tf_checkpoint(fresh.save_tf_checkpoint(str(tmp_path / "again" / "model")))
    np.testing.assert_array_equal(again.get_state_dict()["net/hidden/w"], weights)


def test_the_users_graph_and_keras_in_the_same_program_are_untouched(local: Context):
    graph = two_classes()
    operations = len(graph.graph.get_operations())
    x, y = make_data(40, "int64")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    losses = []
    for _ in range(2):
        est = graph.estimator(sgd(), 1, seed=SEED)
        losses.append(est.fit(x, y, epochs=1, batch_size=16)["loss"])
        Estimator.from_keras(model=model, workers=1, seed=1).fit(x, y, batch_size=20)
        assert len(graph.graph.get_operations()) == operations
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(est)).predict(x), est.predict(x))
    copy = clone(est)
    assert copy.fit(x, y, epochs=1, batch_size=16)["loss"] == losses[0]
    assert len(est.sess.run(graph.tensors["outputs"].name, {"net/x:0": x})) == 40


@pytest.mark.slow
def test_ref_variables_and_old_control_flow_train_alike(local: Context):
    program = """
    import numpy as np, tensorflow.compat.v1 as v1
    v1.disable_v2_behavior()
    from orca import Estimator, init_orca_context
    from orca.testing.cases import make_data, batches
    from tests.conformance.graph_models import two_classes, sgd, train_on
    init_orca_context(cores=2)
    graph = two_classes(resource=False)
    x, y = make_data(60, "int64")
    est = graph.estimator(sgd(), 2, seed=3)
    est.fit(x, y, epochs=2, batch_size=16)
    expected = train_on(batches(x, y, epochs=2, batch_size=16, seed=3), graph, sgd())
    for name, value in est.get_state_dict().items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6)
    print("alike", len(expected))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=150, env=os.environ
    )
    assert "alike 4" in done.stdout, done.stderr[-3000:]


def test_flat_tuples_are_read_by_the_number_of_inputs_and_labels(local: Context):
    import tensorflow as tf

    graph = v1.Graph()
    with graph.as_default():
        v1.set_random_seed(1)
        user, item = v1.placeholder(v1.int32, (None,), "user"), v1.placeholder(v1.int32, (None,), "item")
        rating = v1.placeholder(v1.float32, (None,), "rating")
        table = v1.get_variable("table", (10, 4))
        score = v1.reduce_sum(v1.gather(table, user) * v1.gather(table, item), 1)
        loss = v1.reduce_mean(v1.square(score - rating))
    tensors = {"inputs": [user, item], "outputs": score, "labels": rating, "loss": loss}
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 10, (2, 50))
    ratings = rng.normal(size=50).astype("f4")
    kinds = {
        "tuple": (users, items, ratings),
        "nested": ((users, items), ratings),
        "tf.data": tf.data.Dataset.from_tensor_slices((users, items, ratings)),
        "shards": XShards.partition({"x": (users, items), "y": ratings}, num_shards=3),
    }
    losses = {}
    for kind, data in kinds.items():
        est = Estimator.from_graph(optimizer=sgd(), workers=2, seed=1, **tensors)
        # A pipeline keeps its own order of rows, so the others keep theirs too.
        losses[kind] = est.fit(data, epochs=2, batch_size=10, shuffle=False)["loss"]
    assert all(value == losses["tuple"] for value in losses.values()), losses
    assert est.predict((users, items)).shape == (50,)
    with pytest.raises(DataError, match=r"Column 'user' of data= has 1099511627776 in row 1, .*int32"):
        import pandas as pd

        frame = pd.DataFrame({"user": [1, 2**40], "item": [1, 2], "rating": [0.0, 1.0]})
        est.fit(frame, feature_cols=["user", "item"], label_cols=["rating"])


@pytest.mark.slow
def test_a_checkpoint_within_an_epoch_continues_bit_for_bit_in_a_new_process(local: Context, tmp_path):
    x, y = make_data(60, "int64")
    whole = two_classes(dropout=0.3).estimator(v1.train.AdamOptimizer(0.01), 2, seed=SEED)
    whole.fit(x, y, epochs=2, batch_size=10)
    first = two_classes(dropout=0.3).estimator(v1.train.AdamOptimizer(0.01), 2, seed=SEED, model_dir=str(tmp_path))
    first.fit(x, y, epochs=2, batch_size=10, max_steps=8, checkpoint_trigger=SeveralIteration(4))
    program = f"""
    import sys, numpy as np, tensorflow.compat.v1 as v1
    from orca import init_orca_context
    from orca.testing.cases import make_data
    from tests.conformance.graph_models import two_classes
    init_orca_context(cores=2)
    est = two_classes(dropout=0.3).estimator(v1.train.AdamOptimizer(0.01), 2, model_dir={str(tmp_path)!r})
    est.load_orca_checkpoint({str(tmp_path)!r})
    est.fit(*make_data(60, "int64"), epochs=2, batch_size=10, resume=True)
    est.save({str(tmp_path / "resumed")!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=150, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    resumed = two_classes(dropout=0.3).estimator(v1.train.AdamOptimizer(0.01), 2).load(str(tmp_path / "resumed"))
    assert resumed.step == whole.step == 12
    for name, value in whole.get_state_dict().items():
        np.testing.assert_array_equal(resumed.get_state_dict()[name], value, name)


def test_exported_and_frozen_graphs_predict_alike(local: Context, tmp_path):
    graph, tensors = normalized_graph()
    x, y = make_data(40, "int64")
    est = Estimator.from_graph(optimizer=sgd(), seed=SEED, **tensors)
    est.fit(x, y, epochs=1, batch_size=20)
    expected = est.predict(x)
    folder = est.export("savedmodel", str(tmp_path / "saved"))
    loaded = Estimator.from_graph(model_path=folder)
    np.testing.assert_allclose(loaded.predict(x), expected, rtol=1e-6, atol=1e-6)
    session = est.sess
    frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), [tensors["outputs"].op.name])
    (tmp_path / "frozen.pb").write_bytes(frozen.SerializeToString())
    names = {"inputs": "x:0", "outputs": tensors["outputs"].name, "feed_dict": {"training": False}}
    from_file = Estimator.from_graph(model_path=str(tmp_path / "frozen.pb"), **names)
    np.testing.assert_allclose(from_file.predict(x), expected, rtol=1e-6, atol=1e-6)
    with graph.as_default():
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    restored = Estimator.from_graph(model_path=path, **names)
    np.testing.assert_allclose(restored.predict(x), expected, rtol=1e-6, atol=1e-6)


def onnx_outputs(path: str, feeds):
    """Return the outputs of an ONNX file by name, computed by onnx itself."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    return dict(zip([one.name for one in model.graph.output], ReferenceEvaluator(model).run(None, feeds), strict=True))


def test_onnx_and_openvino_compute_what_predict_does(local: Context, tmp_path):
    x, y = make_data(40, "int64")
    _, tensors = normalized_graph()
    est = Estimator.from_graph(optimizer=sgd(), seed=SEED, **tensors)
    est.fit(x, y, epochs=1, batch_size=20)
    expected = est.predict(x)
    outputs = onnx_outputs(est.export("onnx", str(tmp_path / "one")), {"x": x})
    np.testing.assert_allclose(outputs["prediction"], expected, rtol=1e-5, atol=1e-6)
    loaded = Estimator.from_openvino(model_path=est.export("openvino", str(tmp_path / "one")))
    np.testing.assert_allclose(loaded.predict(x), expected, rtol=1e-4, atol=1e-5)
    # Inputs and outputs keep their names and their order.
    several = two_inputs().estimator(sgd(), 1, seed=SEED)
    rows = {"left": x[:, :2], "right": x[:, 2:]}
    outputs = onnx_outputs(several.export("onnx", str(tmp_path / "several")), rows)
    loaded = Estimator.from_openvino(model_path=several.export("openvino", str(tmp_path / "several")))
    converted = loaded.predict((rows["left"], rows["right"]))
    for number, (name, value) in enumerate(several.predict(rows).items()):
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        part = converted[name] if isinstance(converted, dict) else converted[number]
        np.testing.assert_allclose(part, value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_graphs_that_other_formats_do_not_have_are_exported_as_savedmodel(local: Context, tmp_path):
    with v1.Graph().as_default():
        words = v1.placeholder(v1.string, (None,), "words")
        est = Estimator.from_graph(inputs=words, outputs=v1.strings.length(words))
    for kind in ("onnx", "openvino"):
        with pytest.raises(ArgumentError, match=rf"export\('{kind}'\).*cannot be converted.*StringLength.*savedmodel"):
            est.export(kind, str(tmp_path / "words"))
    saved = Estimator.from_graph(model_path=est.export("savedmodel", str(tmp_path / "words")))
    np.testing.assert_array_equal(saved.predict(np.array(["a", "bcd"])), [1, 3])
    # Dropout without a switch is on in predict too; another program has no state for its random numbers.
    noisy = two_classes(dropout=0.5).estimator(sgd(), 1, seed=SEED)
    path = noisy.export("savedmodel", str(tmp_path / "noisy"))
    with v1.Session(graph=v1.Graph()) as session:
        meta = v1.saved_model.load(session, ["serve"], path)
        signature = meta.signature_def["serving_default"]
        fetch, feed = signature.outputs["prediction"].name, next(iter(signature.inputs.values())).name
        first, second = (session.run(fetch, {feed: make_data(20)[0]}) for _ in range(2))
    assert first.shape == (20, 2)
    assert np.abs(first - second).max() > 0


def test_two_optimizers_by_prefix_and_clipping(local: Context):
    graph = two_classes()
    x, y = make_data(60, "int64")
    first = graph.estimator(sgd(), 1, seed=SEED)
    start = first.sess.run(["net/out/w/Read/ReadVariableOp:0", "net/hidden/w/Read/ReadVariableOp:0"])
    optimizers = {"net/": v1.train.AdamOptimizer(0.01), "net/out": v1.train.GradientDescentOptimizer(0.0)}
    est = graph.estimator(optimizers, 2, seed=SEED)
    est.fit(x, y, epochs=1, batch_size=16)
    np.testing.assert_array_equal(est.get_state_dict()["net/out/w"], start[0])
    assert np.abs(est.get_state_dict()["net/hidden/w"] - start[1]).max() > 1e-3
    clipped = [graph.estimator(v1.train.GradientDescentOptimizer(1.0), n, seed=SEED, clip_norm=1e-3) for n in (1, 2)]
    for one in clipped:
        one.fit(x, y, epochs=1, batch_size=60)
    moved = [one.get_state_dict()["net/hidden/w"] - start[1] for one in clipped]
    assert 0 < np.linalg.norm(moved[0]) <= 1e-3
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-7)
