"""Every argument of `from_openvino` is checked on the driver, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from orca import Estimator
from orca.context import Context
from tests.backends.openvino_models import dense
from tests.orca.wrong_values import Call, Case, arguments_of, extra, mistakes


def make(**changes: Any) -> Estimator:
    if changes.get("model") is not None:
        return Estimator.from_openvino(**changes)
    path = Path("dense.xml")
    return Estimator.from_openvino(**{"model_path": str(path) if path.exists() else dense(path), **changes})


def quantize(**changes: Any) -> Estimator:
    return make().quantize(**{"calibration_data": np.zeros((4, 6), "f4"), **changes})


CALLS = [Call(
    "from_openvino",
    Estimator.from_openvino,
    make,
    {
        "model_path": extra("missing.xml"),
        "model": extra(right="None"),
        "config": extra(
            5, "x", [1], {"no": 1}, {1: 2}, {"num_streams": "x"}, {"performance_hint": "slow"}, {"precision": 5},
            {"device": 5}, {"mean": "x"}, {"scale": [None]}, {"cache_dir": 5},
        ),
        "layout": extra("NHWC", {"no": "NC"}, right="None"),
        "shape": extra((0, 6), ("a", 6), {"no": (1, 6)}, right="None"),
        "example": extra(right="None, empty list, empty dict, array"),
    },
), Call(
    "quantize", Estimator.quantize, quantize, {
        "calibration_data": extra(right="empty list, empty dict, array, lambda"),
        "feature_cols": extra([None], right="text, integer, zero, negative, huge"),
        "preset": extra("fast", choices=True),
        "config": extra({"no": 1}, right="None, empty dict"),
    },
)]  # fmt: skip


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_a_wrong_value_is_refused_before_anything_starts(
    cases: list[Case], local: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert cases
    assert mistakes(cases) == []
