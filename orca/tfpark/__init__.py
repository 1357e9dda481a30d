"""TFPark: the classes of Analytics Zoo for TensorFlow graphs, as a thin layer over `Estimator.from_graph`."""

from __future__ import annotations

from orca.tfpark.context import init_nncontext
from orca.tfpark.dataset import TFDataset
from orca.tfpark.keras_model import KerasModel
from orca.tfpark.net import TFNet
from orca.tfpark.optimizer import TFOptimizer
from orca.tfpark.predictor import TFPredictor
from orca.tfpark.zoo_optimizer import ZooOptimizer

__all__ = ["KerasModel", "TFDataset", "TFNet", "TFOptimizer", "TFPredictor", "ZooOptimizer", "init_nncontext"]
