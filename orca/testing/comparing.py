"""Comparisons that checks share, with messages that name what differs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orca.testing.cases import Array, BackendCase, Weights

if TYPE_CHECKING:
    from orca.estimator import Estimator
    from orca.history import History

_E = TypeVar("_E", bound=BaseException)
_CLOCKED = ("seconds", "rows_per_s")


def near(actual: Any, expected: Any, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Require equal shapes and nearly equal values."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)


def same_weights(actual: Weights, expected: Weights, case: BackendCase, what: str) -> None:
    """Require the same names and, within the case's tolerance, the same values."""
    assert actual.keys() == expected.keys(), f"{what}: weights {list(actual)}, expected {list(expected)}"
    for name, value in expected.items():
        near(actual[name], value, f"{what}, weight {name}", case.rtol, case.atol)


def same_scores(actual: Mapping[str, float], expected: Mapping[str, float], what: str) -> None:
    """Require the same names and values."""
    assert set(expected) <= set(actual), f"{what}: results {sorted(actual)}, expected {sorted(expected)}"
    for name, value in expected.items():
        near(actual[name], value, f"{what}, {name}")


def same_history(actual: History, expected: History, exact: bool, what: str) -> None:
    """Require that two runs report the same values for the epochs that both have, times aside."""
    records = {record["epoch"]: record for record in expected}
    for record in actual:
        other = records[record["epoch"]]
        assert record.keys() == other.keys(), f"{what}: reports {list(record)}, expected {list(other)}"
        for name in record.keys() - set(_CLOCKED):
            _same_leaf(record[name], other[name], exact, f"{what}, {name} of epoch {record['epoch']}")


def same_state(one: Estimator, two: Estimator, exact: bool, what: str) -> None:
    """Require equal weights and optimizer states, bit for bit if `exact`, as `save` writes them."""
    mine, other = (dict(_leaves(_saved(est))) for est in (one, two))
    assert mine.keys() == other.keys(), f"{what}: the states differ in {sorted(mine.keys() ^ other.keys())}"
    for name, value in mine.items():
        _same_leaf(value, other[name], exact, f"{what}, {name}")


def _saved(est: Estimator) -> dict[str, Any]:
    from orca.runs import saved_states

    with tempfile.TemporaryDirectory() as folder:
        state = saved_states.load(est.save(str(Path(folder) / "state")))[1]
    return {key: value for key, value in state.items() if key not in ("position", "example")}


def _leaves(tree: Any, name: str = "state") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}")
    elif isinstance(tree, list | tuple):
        for place, value in enumerate(tree):
            yield from _leaves(value, f"{name}.{place}")
    else:
        yield name, tree


def _same_leaf(one: Any, two: Any, exact: bool, what: str) -> None:
    if one is None or isinstance(one, str):
        assert one == two, f"{what}: {one!r}, expected {two!r}"
    elif exact:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two), err_msg=what)
    else:
        near(one, two, what, rtol=1e-4, atol=1e-6)


def refused(kind: type[_E], call: Callable[[], object], words: Iterable[str] = ()) -> _E:
    """Return the error that a call raises; require its kind and these words in its text."""
    try:
        call()
    except kind as error:
        caught = error
    else:
        raise AssertionError(f"expected {kind.__name__}; nothing was raised")
    missing = [word for word in words if word not in str(caught)]
    assert not missing, f"the error does not say {missing}: {caught}"
    return caught


def decided(outputs: Array) -> Array:
    """Return the class of each row: the larger of two scores, or whether one probability is above 0.5."""
    return outputs.argmax(axis=1) if _two(outputs) else (outputs.reshape(-1) > 0.5).astype("int64")


def exact_metrics(names: Iterable[str], outputs: Array, y: Array) -> dict[str, float]:
    """Return metrics over all rows, each from its definition.

    >>> scores = np.array([0.9, 0.2, 0.6, 0.7])
    >>> exact_metrics(["accuracy", "auc", "f1"], scores, np.array([1, 0, 0, 1]))
    {'accuracy': 0.75, 'auc': 1.0, 'f1': 0.8}
    """
    guess = decided(outputs)
    margin = outputs[:, 1] - outputs[:, 0] if _two(outputs) else outputs.reshape(-1)
    positive, negative = margin[y == 1][:, None], margin[y == 0][None, :]
    values = {
        "accuracy": lambda: (guess == y).mean(),
        "auc": lambda: ((positive > negative) + 0.5 * (positive == negative)).mean(),
        "f1": lambda: 2 * (guess * y).sum() / (guess.sum() + y.sum()),
    }
    return {name: float(values[name]()) for name in names}


def _two(outputs: Array) -> bool:
    return outputs.ndim == 2 and outputs.shape[1] == 2
