"""No rank of a Keras job runs a TensorFlow server, and no socket lets a stranger in."""

from __future__ import annotations

import pytest

from orca.context import Context, init_orca_context
from tests.conformance.keras_cases import PLAIN
from tests.conftest import SLOTS
from tests.launch.sockets import LOOPBACK, Watch, train_among_strangers

PARAMS = [
    pytest.param(one, id=one.title, marks=[pytest.mark.horovod] if one.name.endswith("horovod") else [])
    for one in PLAIN
]
pytestmark = pytest.mark.slow
OWN_CONNECTIONS = ("keras.multiworker", "keras.parameter_server", "keras.mirrored")


@pytest.mark.parametrize("one", PARAMS)
def test_keras(one, local: Context, tmp_path):
    watch = Watch(one.title, tmp_path, tensorflow=True)
    train_among_strangers(one, watch)
    assert watch.addresses <= LOOPBACK
    if one.name in OWN_CONNECTIONS:
        asked = {(listener, asks) for moment, listener, asks in watch.rows if moment != "start"}
        assert all(asks for _, asks in asked), "a socket does not ask for a key"
        assert not any(listener.process == "rank" for listener, _ in asked), "a rank listens after the start"


@pytest.mark.spark
def test_keras_on_spark(spark_session, tmp_path):
    init_orca_context(runtime="spark", cores=SLOTS)
    watch = Watch("keras.multiworker on Spark", tmp_path)
    train_among_strangers(PLAIN[0], watch)
    assert watch.addresses <= LOOPBACK
    assert not any(listener.process == "rank" for moment, listener, _ in watch.rows if moment != "start")
