"""The Keras snippets of the Orca document; only the imports and the data are changed."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from orca import Estimator, init_orca_context
from orca.context import Context
from tests.conformance.keras_models import lenet

rng = np.random.default_rng(0)
images, labels = rng.integers(0, 255, (40, 28, 28, 1)).astype("u1"), rng.integers(0, 10, 40)
tfds = SimpleNamespace(
    load=lambda name, split: tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}),
)
max_epoch, total_size, batch_size = 1, 40, 8


def preprocess(data):
    return tf.cast(data["image"], tf.float32) / 255.0, data["label"]


def create_keras_lenet_model():
    return lenet({})


def frame(session):
    import pyarrow as pa

    from orca.shards.shard_formats import arrow_column

    return session.createDataFrame(pa.table({"image": arrow_column((images / 255.0).astype("f4"))}))


@pytest.mark.spark
def test_snippet_with_a_compiled_model(spark_session):
    init_orca_context(runtime="spark")
    df = frame(spark_session)
    model = create_keras_lenet_model()
    model.compile(optimizer=keras.optimizers.RMSprop(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    est = Estimator.from_keras(keras_model=model)

    dataset = tfds.load(name="mnist", split="train")
    dataset = dataset.map(preprocess)
    mnist_train = dataset
    est.fit(data=mnist_train, batch_size=320, epochs=max_epoch)
    predictions = est.predict(data=df, feature_cols=["image"])

    assert np.array([row.prediction for row in predictions.collect()]).shape == (40, 10)


def model_creator(config):
    model = create_keras_lenet_model()
    model.compile(optimizer=keras.optimizers.RMSprop(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train_data_creator(config, batch_size):
    dataset = tfds.load(name="mnist", split="train")
    dataset = dataset.map(preprocess)
    dataset = dataset.batch(batch_size)
    return dataset


def test_snippet_with_creators(local: Context):
    import pandas as pd

    est = Estimator.from_keras(model_creator=model_creator)

    stats = est.fit(data=train_data_creator, epochs=max_epoch, steps_per_epoch=total_size // batch_size)
    df = pd.DataFrame({"image": list((images / 255.0).astype("f4"))})
    predictions = est.predict(data=df, feature_cols=["image"])

    # Five steps of up to 32 rows, fit's own batch_size: the pipeline begins again where it ends.
    assert stats["rows"] == [32 + 8 + 32 + 8 + 32]
    assert len(predictions) == 40
