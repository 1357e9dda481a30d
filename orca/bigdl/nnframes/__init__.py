"""Estimators and transformers of pyspark.ml that train and run layers, and the preprocessing of their columns."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orca.backends.bigdl.preprocessing import (
    ArrayToTensor,
    ChainedPreprocessing,
    FeatureLabelPreprocessing,
    MLlibVectorToTensor,
    Preprocessing,
    ScalarToTensor,
    SeqToMultipleTensors,
    SeqToTensor,
)

if TYPE_CHECKING:
    from orca.bigdl.nnframes.classifier import NNClassifier, NNClassifierModel
    from orca.bigdl.nnframes.stages import NNEstimator, NNModel

_STAGES = {
    "NNClassifier": "orca.bigdl.nnframes.classifier",
    "NNClassifierModel": "orca.bigdl.nnframes.classifier",
    "NNEstimator": "orca.bigdl.nnframes.stages",
    "NNModel": "orca.bigdl.nnframes.stages",
}

__all__ = [
    "ArrayToTensor",
    "ChainedPreprocessing",
    "FeatureLabelPreprocessing",
    "MLlibVectorToTensor",
    "NNClassifier",
    "NNClassifierModel",
    "NNEstimator",
    "NNModel",
    "Preprocessing",
    "ScalarToTensor",
    "SeqToMultipleTensors",
    "SeqToTensor",
]


def __getattr__(name: str) -> Any:
    # Stages are loaded on first use: preprocessing serves estimators where Spark is not installed.
    if name in _STAGES:
        return getattr(import_module(_STAGES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
