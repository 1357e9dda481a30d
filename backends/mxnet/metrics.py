"""Exact versions of MXNet's metrics: MXNet averages some over batches, here every row has the same weight."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np

from orca.metrics import Accuracy, FunctionMetric, MeanError, Metric

_SUMMED = (mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood, mx.metric.Perplexity)


def adapt(metric: object) -> Metric | list[Metric] | None:
    """Translate an mxnet.metric.EvalMetric or its name; None if it is neither."""
    if isinstance(metric, str):
        try:
            metric = mx.metric.create(metric)
        except (ValueError, TypeError, AssertionError, mx.base.MXNetError):
            return None
    if not isinstance(metric, mx.metric.EvalMetric):
        return None
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        parts = [adapt(part) for part in metric.metrics]
        return [one for part in parts if part is not None for one in (part if isinstance(part, list) else [part])]
    kind = type(metric)
    if kind is mx.metric.Loss:
        return []  # the loss is always reported
    if kind is mx.metric.Accuracy:
        return Accuracy(metric.name, class_axis=metric.axis)
    if kind is mx.metric.TopKAccuracy:
        return Accuracy(metric.name, top=metric.top_k)
    if kind in (mx.metric.MAE, mx.metric.MSE, mx.metric.RMSE):
        return MeanError(metric.name, power=1 if kind is mx.metric.MAE else 2, root=kind is mx.metric.RMSE)
    if kind in _SUMMED:
        return SummedMetric(metric.name, copy.deepcopy(metric))
    return FunctionMetric(_OverAllRows(metric), metric.name)


@dataclass(frozen=True)
class SummedMetric(Metric):
    """An MXNet metric that is a sum over rows divided by their number."""

    name: str
    metric: Any

    def empty(self) -> dict[str, Any]:
        return {"sum": 0.0, "count": 0}

    def update(self, state: dict[str, Any], target: Any, output: Any) -> dict[str, Any]:
        own = copy.deepcopy(self.metric)
        own.reset()
        own.update([mx.nd.array(np.asarray(target))], [mx.nd.array(np.asarray(output))])
        return {"sum": state["sum"] + float(own.sum_metric), "count": state["count"] + int(own.num_inst)}

    def compute(self, state: dict[str, Any]) -> float:
        own = copy.deepcopy(self.metric)
        own.sum_metric, own.num_inst = state["sum"], state["count"]
        own.global_sum_metric, own.global_num_inst = own.sum_metric, own.num_inst
        return float(own.get()[1])


class _OverAllRows:
    """Any MXNet metric, computed once over all rows."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __call__(self, target: Any, output: Any) -> float:
        own = copy.deepcopy(self._metric)
        own.reset()
        own.update([mx.nd.array(target)], [mx.nd.array(output)])
        return float(own.get()[1])
