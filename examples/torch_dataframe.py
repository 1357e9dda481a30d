"""Train a PyTorch model on a Spark DataFrame, and predict into a Spark DataFrame.

Run ``python examples/torch_dataframe.py`` where Orca is installed with torch, scikit-learn, Spark and Java.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from pyspark.sql import functions as sql
from sklearn.datasets import load_breast_cancer
from torch import nn

from orca import Estimator, OrcaContext, init_orca_context


class Scaled(nn.Module):
    """Scales each column to mean 0 and variance 1, then applies a small network."""

    def __init__(self, mean: list[float], spread: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("spread", torch.tensor(spread))
        self.body = nn.Sequential(nn.Linear(len(mean), 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body((x - self.mean) / self.spread)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()

    start = time.perf_counter()
    with init_orca_context(runtime="spark", cores=max(2, options.workers)):
        spark = OrcaContext.get_spark_session()
        data = load_breast_cancer(as_frame=True)
        frame = data.frame.rename(columns=lambda name: name.replace(" ", "_"))
        features = [name for name in frame.columns if name != "target"]
        frame["id"] = range(len(frame))
        table = spark.createDataFrame(frame)
        train, test = table.where("id % 5 != 0").cache(), table.where("id % 5 = 0").cache()

        statistics: Any = train.agg(
            *(sql.avg(name).alias(f"mean_{name}") for name in features),
            *(sql.stddev(name).alias(f"spread_{name}") for name in features),
        ).first()
        est = Estimator.from_torch(
            model=Scaled,
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            metrics=["accuracy", "auc"],
            config={
                "mean": [statistics[f"mean_{name}"] for name in features],
                "spread": [statistics[f"spread_{name}"] for name in features],
                "lr": 0.01,
            },
            workers=options.workers,
            seed=0,
        )
        history = est.fit(
            train, feature_cols=features, label_cols="target", epochs=options.epochs, batch_size=32, progress=False
        )
        print(history[-3:])
        scores = est.evaluate(test, feature_cols=features, label_cols="target")

        # The result is a lazy Spark DataFrame with the scores as an additional column of arrays.
        predicted = est.predict(test, feature_cols=features, output_cols="scores")
        guess = sql.expr("CAST(array_position(scores, array_max(scores)) - 1 AS INT)")
        result = predicted.select("id", "target", "scores", guess.alias("guess")).cache()
        result.printSchema()
        result.show(5, truncate=40)
        rows = result.count()
        right = result.where("guess = target").count()
    print(f"spark, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {right / rows:.1%} on {rows} rows (evaluate reports {scores['accuracy']:.1%})")
    return 0 if right / rows >= 0.95 and abs(right / rows - scores["accuracy"]) < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
