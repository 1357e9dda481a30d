"""Every listening socket of a job is bound to one address, loopback on one machine, and lets no stranger in."""

from __future__ import annotations

import socket

import pytest

from orca.backends.torch import torch_distributed
from orca.context import Context, init_orca_context
from tests.conformance.torch_cases import ASYNC, PLAIN, case
from tests.conftest import SLOTS
from tests.launch.sockets import LOOPBACK, Watch, listeners, train_among_strangers

CASES = [*PLAIN, case("torch_distributed", "sharded", sharded=True)]
CASES += [case("parameter_server", "async", mode="async", flags=ASYNC)]
PARAMS = [
    pytest.param(one, id=one.title, marks=[pytest.mark.horovod] if one.name.endswith("horovod") else [])
    for one in CASES
]


def test_a_socket_on_all_addresses_is_found():
    with socket.create_server(("", 0)) as server:
        mine = [entry for entry in listeners() if entry.port == server.getsockname()[1]]
        assert [(entry.process, entry.address) for entry in mine] == [("driver", "0.0.0.0")]


@pytest.mark.parametrize("one", PARAMS)
def test_torch(one, local: Context, tmp_path):
    watch = Watch(one.title, tmp_path)
    train_among_strangers(one, watch)
    if not one.name.endswith("horovod"):  # which listens only for a moment
        assert any(listener.process == "rank" for _, listener, _ in watch.rows)
    assert watch.addresses <= LOOPBACK


@pytest.mark.ray
def test_torch_on_ray(ray_cluster, tmp_path):
    context = init_orca_context(runtime="ray", cores=SLOTS)
    context.stop_gangs()
    # The ranks of a new gang listen only for Ray.
    context.gang(2, torch_distributed.traits.preload).call(lambda rank_context: None)
    watch = Watch("torch.torch_distributed on Ray", tmp_path)
    train_among_strangers(PLAIN[0], watch)
    assert watch.rows
    assert watch.addresses <= LOOPBACK | {ray_cluster.util.get_node_ip_address()}


@pytest.mark.spark
def test_torch_on_spark(spark_session, tmp_path):
    init_orca_context(runtime="spark", cores=SLOTS)
    watch = Watch("torch.torch_distributed on Spark", tmp_path)
    train_among_strangers(PLAIN[0], watch)
    assert watch.rows
    assert watch.addresses <= LOOPBACK
    assert not any(listener.process == "rank" for moment, listener, _ in watch.rows if moment == "idle")
