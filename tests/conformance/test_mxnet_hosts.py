"""MXNet on several hosts: ps-lite and Horovod over the network between them; see test_hosts.py."""

from __future__ import annotations

import pytest

from orca.testing import host_jobs

BACKENDS = ["mxnet.parameter_server", "mxnet.horovod"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run only with --matrix: two clusters take long to start."""
    metafunc.parametrize("backend", BACKENDS if metafunc.config.getoption("--matrix") else [])


@pytest.mark.slow
def test_two_hosts_learn_the_weights_of_one_process(cluster, backend):
    worst = cluster.driver.run(host_jobs.worst_weight, "tests.conformance.mxnet_cases", backend)
    print(f"{backend}: the largest difference between two weights is {worst:.1e}")
