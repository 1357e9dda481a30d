"""The OpenVINO snippets of the Orca guide, verbatim except for the import and a smaller model."""

from __future__ import annotations

import numpy as np
import pytest

from orca.context import Context
from tests.backends.openvino_models import image, image_result


@pytest.mark.parametrize("batch", [4, -1, 1])
def test_the_guide_snippets(context: Context, tmp_path, batch):
    from orca import Estimator, XShards

    model_path = image(tmp_path / "model.xml", batch, side=224)
    est = Estimator.from_openvino(model_path=model_path)

    # ndarray
    input_data = np.random.random([20, 4, 3, 224, 224])
    result = est.predict(input_data)

    # xshards
    shards = XShards.partition({"x": input_data})
    result_shards = est.predict(shards)

    expected = image_result(input_data.reshape(80, 3, 224, 224)).reshape(20, 4, 3)
    assert result.shape == (20, 4, 3)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    np.testing.assert_allclose(result_shards.to_numpy()["prediction"], expected, atol=1e-5)
