"""TensorFlow graphs compared with a hand-written session loop, with Keras, and with Spark's predict_batch_udf.

``python benchmarks/graphs.py`` runs all parts; ``fit``, ``workers`` or ``predict`` one of them. Runs are interleaved.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import numpy as np
from comparing import Comparison, Numbers, take_turns

ROWS, BATCH, FEATURES = 25_600, 64, 64
TURNS = 7


def images(rows: int) -> tuple[Any, Any]:
    """Return random pictures with labels."""
    rng = np.random.default_rng(0)
    return rng.random((rows, 28, 28, 1), dtype="f4"), rng.integers(0, 10, rows).astype("i4")


def lenet_graph() -> tuple[Any, dict[str, Any]]:
    """Return LeNet as a graph."""
    import orca.tf1 as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, (None, 28, 28, 1), "x")
        y = tf.placeholder(tf.int32, (None,), "y")
        layers = tf.layers
        net = layers.max_pooling2d(layers.conv2d(x, 6, 5, padding="same", activation=tf.nn.relu), 2, 2)
        net = layers.max_pooling2d(layers.conv2d(net, 16, 5, activation=tf.nn.relu), 2, 2)
        net = layers.dense(layers.dense(layers.flatten(net), 120, tf.nn.relu), 84, tf.nn.relu)
        logits = layers.dense(net, 10)
        loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    return graph, {"inputs": x, "outputs": logits, "labels": y, "loss": loss}


def lenet_keras(config: dict[str, Any]) -> Any:
    """Return the same network in Keras."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    return model


class SessionLoop:
    """A session loop as users write it: shuffled rows, one run per batch, on as many threads as a rank has."""

    def __init__(self, threads: int) -> None:
        import orca.tf1 as tf

        graph, self.tensors = lenet_graph()
        with graph.as_default():
            self.train = tf.train.AdamOptimizer(1e-3).minimize(self.tensors["loss"])
            config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2)
            self.session = tf.Session(config=config)
            self.session.run(tf.global_variables_initializer())
        self.x, self.y = images(ROWS)

    def epoch(self) -> float:
        """Return the rows per second of one epoch."""
        order = np.random.default_rng(0).permutation(ROWS)
        x, y = self.tensors["inputs"], self.tensors["labels"]
        began, total = time.perf_counter(), 0.0
        for low in range(0, ROWS, BATCH):
            rows = order[low : low + BATCH]
            feeds = {x.name: self.x[rows], y.name: self.y[rows]}
            _, loss = self.session.run([self.train, self.tensors["loss"]], feeds)
            total += float(loss)
        return ROWS / (time.perf_counter() - began)


def _epoch(est: Any, data: Any) -> float:
    return float(est.fit(*data, epochs=1, batch_size=BATCH)["rows_per_s"][-1])


def fit_one(turns: int) -> list[str]:
    """One worker compared with the loop, from the second epoch on."""
    import orca.tf1 as tf
    from orca import Estimator
    from orca.core.machine import usable_cpus

    data = images(ROWS)
    _, tensors = lenet_graph()
    est = Estimator.from_graph(optimizer=tf.train.AdamOptimizer(1e-3), workers=1, seed=0, **tensors)
    loop = SessionLoop(usable_cpus())
    sides = {"from_graph, 1 worker": lambda: _epoch(est, data), "session loop": loop.epoch}
    for side in sides.values():
        side()
    results: Numbers = take_turns(sides, turns, "rows/s")
    return Comparison("1", "LeNet, one worker", *sides, 0.95).lines(results)


def fit_two(turns: int) -> list[str]:
    """Two workers compared with the same model in Keras, on two workers as well."""
    import orca.tf1 as tf
    from orca import Estimator

    data = images(ROWS)
    _, tensors = lenet_graph()
    graph = Estimator.from_graph(optimizer=tf.train.AdamOptimizer(1e-3), workers=2, seed=0, **tensors)
    model = Estimator.from_keras(model_creator=lenet_keras, config={}, workers=2, seed=0)
    sides = {"from_graph, 2 workers": lambda: _epoch(graph, data), "from_keras, 2 workers": lambda: _epoch(model, data)}
    for side in sides.values():
        side()
    return Comparison("2", "LeNet, two workers", *sides, 0.95).lines(take_turns(sides, turns, "rows/s"))


def _timed(frame: Any, rows: int) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - began)


def _predict_function(weights: Any) -> Any:
    """Return a function for predict_batch_udf, with a tf.function of the same network."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    constants = [tf.constant(value) for value in weights]

    @tf.function(reduce_retracing=True)
    def compute(x: Any) -> Any:
        for number in range(0, len(constants), 2):
            x = x @ constants[number] + constants[number + 1]
            x = tf.nn.relu(x) if number + 2 < len(constants) else x
        return x

    return lambda batch: compute(tf.constant(batch)).numpy()


def predict_frame(turns: int, rows: int = 100_000) -> list[str]:
    """`predict` on a Spark DataFrame of 64 floats compared with predict_batch_udf."""
    import pyarrow as pa
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    import orca.tf1 as tf
    from orca import Estimator
    from orca.context import current

    spark = current().spark
    x = np.random.default_rng(0).random((rows, FEATURES), dtype="f4")
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), FEATURES).cast(pa.list_(pa.float32()))
    frame = spark.createDataFrame(pa.table({"features": column})).repartition(2).cache()
    frame.count()
    with tf.Graph().as_default():
        features = tf.placeholder(tf.float32, (None, FEATURES), "features")
        output = tf.layers.dense(tf.layers.dense(features, 128, tf.nn.relu), 2)
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        weights = session.run(tf.global_variables())
    est = Estimator.from_graph(inputs=features, outputs=output, sess=session, workers=2)
    udf = predict_batch_udf(
        functools.partial(_predict_function, weights),
        return_type=ArrayType(FloatType()),
        batch_size=1024,
        input_tensor_shapes=[[FEATURES]],
    )
    sides = {
        "from_graph predict": lambda: _timed(est.predict(frame, feature_cols=["features"], batch_size=1024), rows),
        "predict_batch_udf, tf.function": lambda: _timed(frame.withColumn("prediction", udf("features")), rows),
    }
    for side in sides.values():
        side()
    return Comparison("3", "Spark DataFrame of 64 floats", *sides, 1.0).lines(take_turns(sides, turns, "rows/s"))


def main() -> None:
    from orca import init_orca_context

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["fit", "workers", "predict"], help="fit, workers, predict")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    lines = []
    for part in options.parts:
        runtime = "spark" if part == "predict" else "local"
        with init_orca_context(runtime=runtime, cores=2):
            lines += {"fit": fit_one, "workers": fit_two, "predict": predict_frame}[part](options.turns)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
