"""The cache of OpenVINO models: the user's folders stay, and estimators survive the eviction of their model."""

from __future__ import annotations

import numpy as np
import openvino
import pytest

from orca import Estimator
from orca.backends.openvino import files
from orca.context import Context
from tests.backends.openvino_models import dense, dense_result

x = np.random.default_rng(0).normal(size=(8, 6))


@pytest.fixture
def new_estimator(tmp_path, monkeypatch):
    """A function that creates an estimator of a new model, in a cache of two models."""
    monkeypatch.setattr(files, "_CACHED_MODELS", 2)
    numbers = iter(range(1, 99))

    def make():
        model = openvino.Core().read_model(dense(tmp_path / "dense.xml"))
        model.set_rt_info(str(next(numbers)), "number")  # changes the bytes of the files
        return Estimator.from_openvino(model=model, config={"cache_dir": str(tmp_path / "cache")})

    return make


def test_folders_of_the_user_in_the_cache_folder_stay(local: Context, new_estimator, tmp_path):
    own = [
        tmp_path / "cache" / name for name in ("thesis", "0" * 32, "orca-openvino/notes", f"orca-openvino/{'1' * 32}")
    ]
    for folder in own:
        folder.mkdir(parents=True)
        (folder / "text").write_text("mine")
    for _ in range(5):
        new_estimator().predict(x)
    assert [(folder / "text").read_text() for folder in own] == ["mine"] * 4
    assert len(list((tmp_path / "cache").rglob("model.xml"))) == 2


def test_an_estimator_works_after_its_model_was_evicted(local: Context, new_estimator, tmp_path):
    first = new_estimator()
    np.testing.assert_allclose(first.predict(x), dense_result(x), atol=1e-5)
    cached = first.spec.files.path(first.spec.cache)
    others = [new_estimator() for _ in range(3)]
    for est in others:
        est.predict(x)
    assert not cached.exists()
    np.testing.assert_allclose(first.predict(x), dense_result(x), atol=1e-5)
    assert first.get_model().get_friendly_name() == "dense"
    assert first.save(str(tmp_path / "again.xml"))
