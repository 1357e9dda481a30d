"""A PyTorch estimator in a scikit-learn Pipeline, tuned by grid search and evaluated on test data.

Run ``python examples/sklearn_grid_search.py`` where Orca is installed with torch and scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from orca import Estimator, init_orca_context


def network(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    start = time.perf_counter()
    with init_orca_context(cores=max(2, options.workers)):
        net = Estimator.from_torch(
            model=network,
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            metrics=["accuracy"],
            config={"hidden": 16, "lr": 0.001},
            epochs=options.epochs,
            batch_size=64,
            workers=options.workers,
            seed=0,
        )
        search = GridSearchCV(
            Pipeline([("scale", StandardScaler()), ("net", net)]),
            {"net__config__lr": [0.001, 0.01], "net__config__hidden": [16, 64]},
            cv=StratifiedKFold(3, shuffle=True, random_state=0),
        )
        # Candidates run one after the other, because the workers of each fit already use all cores.
        search.fit(x_train, y_train)
        for params, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
            label = ", ".join(f"{name.removeprefix('net__config__')}={value}" for name, value in params.items())
            print(f"{label:24} accuracy {score:.1%}")
        accuracy = search.score(x_test, y_test)
        classes = search.predict(x_test).argmax(axis=1)
    print(f"{options.workers} workers, 13 fits: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy of the best: {accuracy:.1%} on {len(y_test)} images")
    return 0 if accuracy >= 0.95 and abs(accuracy - float((classes == y_test).mean())) < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
