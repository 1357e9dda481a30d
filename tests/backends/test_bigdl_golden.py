"""Layers and criteria compute what the live BigDL 2.4.0 computes, from the same first weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.bigdl.nn import criterion as criteria
from orca.bigdl.nn import layer as layers
from orca.bigdl.util.common import RNG

CASES = json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "bigdl_layers.json.gz").read_bytes()))
DIFFERENT: dict[str, set[str]] = {
    "Sum": {"y", "grad_x"},
    "SoftMax4": {"y", "grad_x"},
    "Scale": {"grad_weights"},
    "MapTable": {"grad_weights"},
    "LocallyConnected1D": {"y"},
    "CosProx": {"grad_output"},
    "SoftmaxWith": {"loss", "grad_output"},
}
"""What differs on purpose; docs/frameworks/bigdl.md has the reasons."""
NAMES: dict[str, Any] = {
    **{name: getattr(layers, name) for name in layers.__all__},
    **{name: getattr(criteria, name) for name in criteria.__all__},
    "w": np.array([1.0, 2.0, 0.5], np.float32),
}


def array(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [array(item) for item in value]
    return np.array(value["data"], np.float32).reshape(value["shape"])


def leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def assert_near(ours: Any, theirs: Any, limit: float) -> None:
    """Compare with an absolute limit, relative where values are above 1."""
    ours, theirs = leaves(ours), leaves(theirs)
    assert [one.shape for one in ours] == [other.shape for other in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert np.all(np.abs(one - other) <= limit * np.maximum(1.0, np.abs(other)))


def created(case: dict[str, Any]) -> Any:
    RNG().set_seed(case["seed"])
    return eval(case["make"], dict(NAMES)).training(case["training"])


@pytest.mark.parametrize("case", CASES["layers"], ids=lambda case: case["name"])
def test_layer_equals_bigdl(case: dict[str, Any]):
    different = DIFFERENT.get(case["name"], set())
    layer, x = created(case), array(case["x"])
    if case["weights"] is not None:
        assert_near(layer.get_weights(), array(case["weights"]), 1e-7)
    y = layer.forward(x)
    if "y" not in different:
        assert_near(y, array(case["y"]), 1e-5)
    if case["grad_x"] is None or "grad_x" in different:
        return
    assert_near(layer.backward(x, array(case["grad_y"])), array(case["grad_x"]), 1e-4)
    if "grad_weights" not in different:
        grads = [value for entry in layer.parameters().values() for key, value in entry.items() if "grad" in key]
        for theirs in (array(value) for entry in case["grad_weights"] for value in entry.values()):
            limit = 1e-4 * np.maximum(1.0, np.abs(theirs))
            place = next(
                (i for i, g in enumerate(grads) if g.shape == theirs.shape and np.all(np.abs(g - theirs) <= limit)),
                None,
            )
            assert place is not None
            grads.pop(place)  # each gradient stands for one of BigDL's


def criterion_of(case: dict[str, Any]) -> Any:
    if case["name"] == "Parallel":
        parts = criteria.MSECriterion(), criteria.AbsCriterion()
        return criteria.ParallelCriterion().add(parts[0], 0.5).add(parts[1], 2.0)
    return eval(case["make"], dict(NAMES))


@pytest.mark.parametrize("case", CASES["criteria"], ids=lambda case: case["name"])
def test_criterion_equals_bigdl(case: dict[str, Any]):
    different = DIFFERENT.get(case["name"], set())
    criterion, output, target = criterion_of(case), array(case["output"]), array(case["target"])
    loss, grad = criterion.forward(output, target), criterion.backward(output, target)
    if "loss" not in different:
        assert abs(loss - case["loss"]) <= 1e-5 * max(1.0, abs(case["loss"]))
    if "grad_output" not in different:
        assert_near(grad, array(case["grad_output"]), 1e-4)


def test_only_what_the_documentation_lists_differs():
    page = (Path(__file__).parents[2] / "docs" / "frameworks" / "bigdl.md").read_text()
    table = page.partition("## Where Orca differs from BigDL on purpose")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert 1 <= len(rows) <= 8
    kinds = {case["name"]: case["make"].partition("(")[0] for case in CASES["layers"] + CASES["criteria"]}
    for name in DIFFERENT:
        assert any(f"`{kinds[name]}" in row for row in rows), name


def test_differences_have_the_right_mathematics():
    cases = {case["name"]: case for case in CASES["layers"] + CASES["criteria"]}
    x = array(cases["Sum"]["x"])
    np.testing.assert_allclose(layers.Sum(2).forward(x), x.sum(axis=1), atol=1e-6)
    images = array(cases["SoftMax4"]["x"])
    np.testing.assert_allclose(layers.SoftMax().forward(images).sum(axis=1), 1.0, atol=1e-6)
    case = cases["Scale"]
    layer, grad = created(case), array(case["grad_y"])
    layer.forward(array(case["x"]))
    layer.backward(array(case["x"]), grad)
    (entry,) = layer.parameters().values()
    expected = (grad * array(case["x"])).sum(axis=(0, 2, 3)).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(entry["gradWeight"], expected, rtol=1e-4, atol=1e-4)
    case = cases["LocallyConnected1D"]
    layer, theirs = created(case), array(case["y"])
    ours = layer.forward(array(case["x"]))
    np.testing.assert_allclose(ours[:, :-1], theirs[:, :-1], atol=1e-6)
    np.testing.assert_allclose(ours[:, -1] - layer.get_weights()[1][-1], theirs[:, -1], atol=1e-6)
    case = cases["MapTable"]
    layer, inputs, grads = created(case), array(case["x"]), array(case["grad_y"])
    layer.forward(inputs)
    layer.backward(inputs, grads)
    (entry,) = layer.parameters().values()
    total = sum(grad.T @ row for grad, row in zip(grads, inputs, strict=True))
    np.testing.assert_allclose(entry["gradWeight"], total, atol=1e-5)
    output, target = array(cases["CosProx"]["output"]), array(cases["CosProx"]["target"])
    criterion, step = criteria.CosineProximityCriterion(), np.zeros_like(output)
    step[0, 0] = 1e-2
    slope = (criterion.forward(output + step, target) - criterion.forward(output - step, target)) / 2e-2
    assert abs(criterion.backward(output, target)[0, 0] - slope) < 1e-4
