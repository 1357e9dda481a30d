"""Hooks into a run: callbacks on every rank, loggers on the driver."""

from orca.callbacks.arguments import split
from orca.callbacks.base import BATCH_HOOKS, Callback, ReplicaLike, Run, overrides
from orca.callbacks.checkpoint import ModelCheckpoint
from orca.callbacks.early_stopping import EarlyStopping
from orca.callbacks.functions import LambdaCallback
from orca.callbacks.monitor import less_is_better
from orca.callbacks.progress import Progress
from orca.callbacks.scheduler import LRScheduler
from orca.loggers import CSVLogger, JSONLLogger, Logger, MLflow, TensorBoard

__all__ = [
    "BATCH_HOOKS",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "JSONLLogger",
    "LRScheduler",
    "LambdaCallback",
    "Logger",
    "MLflow",
    "ModelCheckpoint",
    "Progress",
    "ReplicaLike",
    "Run",
    "TensorBoard",
    "less_is_better",
    "overrides",
    "split",
]
