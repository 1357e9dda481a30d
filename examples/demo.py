"""A first look at Orca: train a small CNN on scikit-learn's digits with two local workers.

Run ``make demo``, or ``python examples/demo.py --help`` where Orca is installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from orca import Estimator, XShards, init_orca_context


class LeNet(nn.Module):
    """LeNet scaled down to 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", default="out", help="folder for the training curve")
    options = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16).astype("float32")[:, None]
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )

    start = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=max(2, options.workers)):
        train = XShards.partition({"x": x_train, "y": y_train})
        est = Estimator.from_torch(
            model=LeNet,
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            metrics=["accuracy"],
            config={"lr": 3e-3},
            workers=options.workers,
            seed=0,
        )
        print(est.explain(), end="\n\n")
        history = est.fit(train, epochs=options.epochs, batch_size=64, validation_data=(x_test, y_test), progress=True)
        print(f"\n{history}\n")

        scores = est.evaluate(x_test, y_test)
        classes = est.predict(x_test).argmax(axis=1)
        with tempfile.TemporaryDirectory() as folder:
            path = est.save(f"{folder}/lenet")
            again = Estimator.from_torch(model=LeNet, workers=options.workers).load(path)
            same = (again.predict(x_test).argmax(axis=1) == classes).all()

    curve = Path(options.out) / "training-curve.png"
    curve.parent.mkdir(parents=True, exist_ok=True)
    history.plot(str(curve))
    accuracy = float((classes == y_test).mean())
    print(f"training curve: {curve}")
    print(f"saved and reloaded: predictions {'are identical' if same else 'DIFFER'}")
    print(f"trained on {options.workers} workers in {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {accuracy:.1%} on {len(y_test)} images (evaluate reports {scores['accuracy']:.1%})")
    return 0 if accuracy >= 0.95 and same and abs(accuracy - scores["accuracy"]) < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
