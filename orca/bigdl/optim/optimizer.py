"""Everything that `from bigdl.optim.optimizer import *` provides."""

from orca.backends.bigdl.ranking import NDCG, HitRatio, MeanAveragePrecision
from orca.backends.bigdl.regularizer import L1L2Regularizer, L1Regularizer, L2Regularizer
from orca.backends.bigdl.validation import (
    MAE,
    EvaluatedResult,
    Loss,
    Top1Accuracy,
    Top5Accuracy,
    TreeNNAccuracy,
    ValidationMethod,
)
from orca.bigdl.optim.training import DistriOptimizer, LocalOptimizer, Optimizer
from orca.loggers.summaries import TrainSummary, ValidationSummary
from orca.optim_methods import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamWeightDecay,
    Ftrl,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from orca.schedules import Default, Exponential, MultiStep, Plateau, Poly, SequentialSchedule, Step, Warmup
from orca.triggers import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerAnd,
    TriggerOr,
)

__all__ = [
    "LBFGS", "MAE", "NDCG", "SGD", "Adadelta", "Adagrad", "Adam", "AdamWeightDecay", "Adamax", "Default",
    "DistriOptimizer", "EvaluatedResult", "EveryEpoch", "Exponential", "Ftrl", "HitRatio", "L1L2Regularizer",
    "L1Regularizer", "L2Regularizer", "LocalOptimizer", "Loss", "MaxEpoch", "MaxIteration", "MaxScore",
    "MeanAveragePrecision", "MinLoss", "MultiStep", "OptimMethod", "Optimizer", "ParallelAdam", "Plateau", "Poly",
    "RMSprop", "SequentialSchedule", "SeveralIteration", "Step", "Top1Accuracy", "Top5Accuracy", "TrainSummary",
    "TreeNNAccuracy", "TriggerAnd", "TriggerOr", "ValidationMethod", "ValidationSummary", "Warmup",
]  # fmt: skip
