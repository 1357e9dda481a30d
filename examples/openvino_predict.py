"""A digit classifier from training in torch to inference with OpenVINO, in float32 and int8.

Run ``python examples/openvino_predict.py`` where Orca is installed with torch, openvino and scikit-learn, which ships
the digits; with nncf it also creates an int8 model. ``--runtime`` changes only where predictions run.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from orca import Estimator, XShards, init_orca_context


def network(config: dict[str, Any]) -> nn.Module:
    """Create a network of two convolutions for 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(images, digits, test_size=0.25, random_state=0, stratify=digits)

    def accuracy(outputs: Any) -> float:
        return float((np.asarray(outputs).argmax(axis=1) == y_test).mean())

    with init_orca_context(runtime=options.runtime, cores=2), tempfile.TemporaryDirectory() as folder:
        trained = Estimator.from_torch(
            model=network,
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            config={"lr": 3e-3},
            workers=2,
            seed=0,
        )
        trained.fit(x_train, y_train, epochs=options.epochs, batch_size=64)

        plain = trained.predict(x_test)
        fast = trained.predict(x_test, accelerator="openvino")
        print(f"torch:                  {accuracy(plain):.1%}")
        print(f"torch with OpenVINO:    {accuracy(fast):.1%}, differs by {np.abs(fast - plain).max():.1e}")

        path = trained.export("openvino", f"{folder}/digits")
        est = Estimator.from_openvino(model_path=path)
        print(f"\n{est.explain()}\n")
        est.predict(x_test)
        start = time.perf_counter()
        outputs = est.predict(x_test)
        rate = len(outputs) / (time.perf_counter() - start)
        print(f"from the file:          {accuracy(outputs):.1%}, {rate:,.0f} rows/s")
        shards = est.predict(XShards.partition({"x": x_test}, num_shards=4)).to_numpy()
        print(f"from an XShards:        {accuracy(shards['prediction']):.1%}, columns {', '.join(shards)}")
        scores = [accuracy(plain), accuracy(fast), accuracy(outputs), accuracy(shards["prediction"])]
        if importlib.util.find_spec("nncf") is not None:
            small = est.quantize(x_train, rows=200)
            scores.append(accuracy(small.predict(x_test)))
            print(f"int8:                   {scores[-1]:.1%}, saved as {small.save(f'{folder}/int8.xml')}")
    return 0 if min(scores) >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
