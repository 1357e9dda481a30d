"""Keras models, and what one process makes of them, to compare every backend with."""

from __future__ import annotations

import keras
import numpy as np

from orca import Estimator
from orca.testing.cases import SEED, batches


def model_creator(config):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(config.get("lr", 0.1), momentum=0.9),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
        jit_compile=False,  # XLA compiles again for each size of batch
    )
    return model


def noisy_creator(config):
    """A network with dropout and Adam, whose seeds and slots a checkpoint has to hold."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(40, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    return model


def two_creator(config):
    """Two inputs, two outputs by name, and a loss for one of them."""
    left, right = keras.Input((2,), name="left"), keras.Input((4,), name="right")
    joined = keras.layers.Dense(3)(left) + keras.layers.Dense(3)(right)
    model = keras.Model(
        {"left": left, "right": right},
        {"score": keras.layers.Dense(1, name="score")(joined), "rest": keras.layers.Activation("relu")(joined)},
    )
    model.compile(optimizer="sgd", loss={"score": "mse", "rest": None}, jit_compile=False)
    return model


def train_on(batches, seed, creator=model_creator):
    """Keras itself, one process, these batches."""
    keras.utils.set_random_seed(seed)
    model = creator({})
    for x, y in batches:
        model.train_on_batch(x, y)
    return model


def train_alone(x, y, epochs, batch_size, creator=model_creator):
    """Keras itself, one process, the batches of a fit."""
    return train_on(batches(x, y, epochs=epochs, batch_size=batch_size, seed=SEED), SEED, creator)


def estimator(backend, workers, **more):
    return Estimator.from_keras(
        model_creator=model_creator, backend=backend, workers=workers, seed=SEED, **{"config": {}, **more}
    )


def same_weights(model, other, message=""):
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=message)


def lenet(config):
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(3e-3, 6 * 63)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
