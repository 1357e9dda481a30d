"""From CSV files to a column of predictions: read, clean, index, group, scale, train on two workers.

Run ``python examples/xshards.py`` where Orca is installed with pandas and torch; ``--runtime ray`` or
``--runtime spark`` runs everything there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from orca import Estimator, init_orca_context
from orca.data import read_csv
from orca.shards.transformers import StandardScaler, StringIndexer

COLUMNS = ["city_number", "city_income", "age", "income"]
FEATURES = [f"{name}_scaled" for name in COLUMNS]


def write_visits(folder: Path, files: int = 4, rows: int = 1500) -> None:
    """Write one file of shop visits per month, with some missing ages and cities."""
    rng = np.random.default_rng(0)
    levels = {"Bonn": 2400, "Lima": 1500, "Oslo": 3300, "Rome": 2700}
    for month in range(files):
        city = rng.choice(list(levels), rows)
        income = rng.normal([levels[name] for name in city], 500).round(2)
        age = rng.integers(18, 80, rows).astype("float64")
        # People who earn more than their city's average buy, young people more readily.
        interest = (income - [levels[name] for name in city]) / 500 + (45 - age) / 30
        table = pd.DataFrame({"city": city, "age": age, "income": income, "bought": (interest > 0).astype(int)})
        table.loc[rng.random(rows) < 0.02, "age"] = np.nan
        table.loc[rng.random(rows) < 0.02, "city"] = np.nan
        table.to_csv(folder / f"2025-{month + 1:02d}.csv", index=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, init_orca_context(runtime=options.runtime, cores=2):
        write_visits(Path(folder))
        visits = read_csv([f"{folder}/2025-01.csv", f"{folder}/2025-02.csv", f"{folder}/2025-03.csv"])
        later = read_csv(f"{folder}/2025-04.csv")
        print(f"read {len(visits)} rows for training ({visits}) and {len(later)} for testing")
        print(f"missing values: {visits.get_null_sum()}")

        # Statistics are fitted on the first months and only applied to the last.
        clean = visits.drop_missing_value().cache()
        indexer = StringIndexer(inputCol="city", outputCol="city_number").fit(clean)
        cities = clean.group_by("city", agg={"income": "mean"})
        cities = cities.transform_shard(lambda frame: frame.rename(columns={"income": "city_income"})).cache()
        print(f"\n{cities.sort_values('city_income').to_pandas().to_string(index=False)}\n")
        train = indexer.transform(clean).merge(cities, on="city").cache()
        scaler = StandardScaler(inputCol=COLUMNS, outputCol=FEATURES).fit(train)
        shards = scaler.transform(train).to_features(FEATURES, "bought")
        test = scaler.transform(indexer.transform(later.drop_missing_value()).merge(cities, on="city")).cache()

        est = Estimator.from_torch(
            model=lambda config: nn.Sequential(nn.Linear(len(FEATURES), 32), nn.ReLU(), nn.Linear(32, 2)),
            optimizer=torch.optim.Adam,
            loss=nn.CrossEntropyLoss(),
            metrics=["accuracy", "auc"],
            config={"lr": 0.01},
            workers=2,
            seed=0,
        )
        print(est.fit(shards, epochs=options.epochs, batch_size=128, progress=False))
        scores = est.evaluate(test, feature_cols=FEATURES, label_cols="bought")
        table = est.predict(test, feature_cols=FEATURES).to_pandas()

    table["guess"] = np.stack(table["prediction"]).argmax(axis=1)
    accuracy = float((table["guess"] == table["bought"]).mean())
    print(f"\n{table[['city', 'age', 'income', 'bought', 'guess']].head(5).to_string(index=False)}\n")
    print(f"{options.runtime}, two workers: {time.perf_counter() - start:.1f} s")
    print(f"test accuracy: {accuracy:.1%} on {len(table)} rows (evaluate reports {scores['accuracy']:.1%})")
    return 0 if accuracy >= 0.95 and abs(accuracy - scores["accuracy"]) < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
