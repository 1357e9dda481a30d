"""MXNet models in a store: kept as values, converted, and loaded into an estimator of the same model."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mxnet")

from tests.conformance.models import make_data
from tests.conformance.mxnet_models import estimator


def test_a_fitted_mxnet_model_comes_back_converted_and_into_an_estimator(om, local):
    x, y = make_data(40)
    est = estimator(workers=1)
    est.fit((x, y), epochs=1, batch_size=20)
    version = om.models.put(est, "net", example=x[:4])
    assert (version.kind, version.manifest["position"]["epoch"]) == ("mxnet", 1)
    np.testing.assert_allclose(om.models.get("net").predict(x), est.predict(x), atol=1e-5)
    np.testing.assert_allclose(om.models.get("net", into=estimator(workers=1)).predict(x), est.predict(x), atol=1e-6)
