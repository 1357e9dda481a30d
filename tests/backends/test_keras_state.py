"""Keras states: what one backend has learned, another one continues."""

from __future__ import annotations

from orca.context import Context
from tests.conformance.keras_models import estimator, same_weights
from tests.conformance.models import make_data


def test_keras_backends_load_each_others_state(local: Context, tmp_path):
    x, y = make_data(60)
    y = y.astype("f4")
    whole = estimator("multiworker", 2)
    whole.fit(x, y, epochs=4, batch_size=16)
    first = estimator("parameter_server", 3)
    first.fit(x, y, epochs=2, batch_size=16)
    first.save(str(tmp_path / "saved"))
    second = estimator("mirrored", 2).load(str(tmp_path / "saved"))
    assert second.epoch == 2
    second.fit(x, y, epochs=1, batch_size=16)
    second.save_checkpoint(str(tmp_path / "more"))
    third = estimator("multiworker", 1).load_checkpoint(str(tmp_path / "more"))
    third.fit(x, y, epochs=1, batch_size=16)
    same_weights(third.get_model(), whole.get_model())
