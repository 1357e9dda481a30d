"""What servers and the scheduler of MXNet's KVStore do when something is wrong with them or asked of them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from orca import WorkerError
from orca.context import Context
from tests.conformance.models import make_data
from tests.conformance.test_mxnet import estimator

mx = pytest.importorskip("mxnet")

from tests.conformance.mxnet_models import model_creator


class TakenPort:
    """A creator of a model that, wherever it arrives, makes the scheduler use a port that is taken."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, config):
        return model_creator(config)

    def __setstate__(self, state):
        from orca.backends.mxnet import kvstore

        self.__dict__.update(state)
        kvstore.held_port = lambda context: self.port


def test_a_scheduler_that_cannot_listen_ends_fit_instead_of_hanging(local: Context):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        began = time.monotonic()
        with pytest.raises(WorkerError, match="scheduler") as caught:
            estimator(2, model_creator=TakenPort(taken.getsockname()[1])).fit(*make_data(16), batch_size=8)
    assert time.monotonic() - began < 30
    assert "bind failed" in str(caught.value)


def test_workers_wait_for_the_store_for_a_limited_time():
    program = (
        "import time, orca; from orca.backends.mxnet.kvstore import limited\n"
        "with limited(0.1, 'a'): pass\n"
        "time.sleep(0.3)\n"
        "with limited(0.1, 'the scheduler'): time.sleep(60)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert shown.returncode == 1
    assert shown.stderr.startswith("Could not connect to the scheduler within 0.1 s")
