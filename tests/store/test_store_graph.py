"""TensorFlow graphs in a store: kept as values, converted, and loaded into an estimator of the same graph."""

from __future__ import annotations

import numpy as np
import pytest

v1 = pytest.importorskip("tensorflow.compat.v1")

from orca.errors import NotFittedError
from orca.testing.cases import make_data
from tests.conformance.graph_models import sgd, two_classes


def test_a_fitted_graph_comes_back_converted_and_into_an_estimator(om, local):
    x, y = make_data(40, "int64")
    graph = two_classes()
    est = graph.estimator(sgd(), 1, seed=3)
    with pytest.raises(NotFittedError, match=r"nothing to save yet"):
        om.models.put(est, "graph", example=x[:4])
    assert om.sweep() == []
    est.fit(x, y, epochs=2, batch_size=20)
    version = om.models.put(est, "graph", example=x[:4])
    assert (version.kind, version.manifest["position"]["epoch"]) == ("graph", 2)
    np.testing.assert_allclose(om.models.get("graph").predict(x), est.predict(x), atol=1e-5)
    other = om.models.get("graph", into=graph.estimator(sgd(), 1, seed=4))
    assert (other.epoch, other.seed) == (2, 3)
    np.testing.assert_allclose(other.predict(x), est.predict(x), atol=1e-6)
