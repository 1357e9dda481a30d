"""Tensor programs over the columns of a DataFrame: K-means on scikit-learn's digits, one reduction per step.

Run ``python examples/tensorframes.py`` where Orca is installed with tensorflow and scikit-learn; ``--runtime ray`` or
``--runtime spark`` runs the same program on the cluster's own DataFrames.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits
from sklearn.metrics import homogeneity_score

import orca.tensorframes as tfs
import orca.tf1 as tf
from orca import XShards, init_orca_context

CLUSTERS = 12


def distributed(table: pa.Table, runtime: str, context: Any) -> Any:
    """Return the rows as the runtime's own kind of frame."""
    if runtime == "spark":
        return context.spark.createDataFrame(table).repartition(4)
    if runtime == "ray":
        return XShards.from_arrow(table, 4).to_ray_dataset()
    return XShards.from_arrow(table, 4)


def nearest(points: Any, centers: np.ndarray[Any, Any]) -> Any:
    """Return the number of the nearest center of each point, as a tensor."""
    distances = tf.reduce_sum((points[:, None, :] - tf.constant(centers)[None, :, :]) ** 2, 2)
    return tf.argmin(distances, 1)


def step(frame: Any, centers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the means of the points that are nearest to each center."""
    with tf.Graph().as_default():
        points = tf.placeholder(tf.float64, [None, 64], "pixels")
        label = nearest(points, centers)
        sums = tf.math.unsorted_segment_sum(points, label, CLUSTERS)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(points[:, 0]), label, CLUSTERS)
        # One row per block: what the block contributes.
        parts = tfs.map_blocks({"sums": sums[None], "counts": counts[None]}, frame, trim=True)
    total = tfs.reduce_blocks(
        lambda sums_input, counts_input: {"sums": sums_input.sum(axis=0), "counts": counts_input.sum(axis=0)}, parts
    )
    return total["sums"] / np.maximum(total["counts"], 1)[:, None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    table = pa.table({"pixels": pa.array(pixels.tolist()), "digit": digits})
    began = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=2) as context:
        frame = distributed(table, options.runtime, context)
        tfs.print_schema(frame)
        centers = pixels[:: len(pixels) // CLUSTERS][:CLUSTERS].copy()
        for _ in range(options.steps):
            centers = step(frame, centers)
        with tf.Graph().as_default():
            points = tf.placeholder(tf.float64, [None, 64], "pixels")
            labelled = tfs.map_blocks(tf.identity(nearest(points, centers), name="cluster"), frame)
        counted = tfs.map_rows(lambda cluster: {"one": cluster * 0 + 1}, labelled)
        sizes = tfs.aggregate(lambda one_input: {"one": one_input.sum(axis=0)}, counted, by="cluster")
        rows = labelled.toPandas() if options.runtime == "spark" else labelled.to_pandas()
        groups = sizes.toPandas() if options.runtime == "spark" else sizes.to_pandas()
    score = homogeneity_score(rows["digit"], rows["cluster"])
    print(f"clusters of {', '.join(map(str, sorted(groups['one'])))} digits")
    print(f"homogeneity {score:.2f} after {options.steps} steps, {time.perf_counter() - began:.0f} s")
    return 0 if score > 0.6 and groups["one"].sum() == len(digits) else 1


if __name__ == "__main__":
    sys.exit(main())
