"""Loggers write what a run reports to csv, JSON lines, TensorBoard or MLflow, from the driver."""

from orca.loggers.base import Logger
from orca.loggers.csv import CSVLogger
from orca.loggers.jsonl import JSONLLogger
from orca.loggers.mlflow import MLflow
from orca.loggers.tensorboard import TensorBoard

__all__ = ["CSVLogger", "JSONLLogger", "Logger", "MLflow", "TensorBoard"]
