"""Several hosts: the ranks of Ray and Spark in namespaces with names, interfaces and addresses of their own.

The host names resolve to loopback addresses, and every host has a second interface with the same address: whatever
chooses the wrong one cannot reach the other host.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from orca.backends.horovod_group import check_host_name
from orca.errors import ResourceError, WorkerError
from orca.launch.processes import wait_until
from orca.testing import host_jobs
from orca.testing.host_clusters import Driver, RayHosts, SparkHosts, await_slots
from orca.testing.hosts import Hosts, unavailable
from tests.conformance.conftest import HostCluster

ROWS, WIDTH, SHARDS, WIDE_BATCH = 12_000, 1000, 3, 512
NEEDED = ROWS // 2 * host_jobs.row_bytes(WIDTH)
FAULT_SECONDS = 40.0
LEFT_SECONDS = 30.0
CONTINUE_SECONDS = 60.0
START_SECONDS = 20.0
"""Less than the 26 s that Ray waits for a host that it cannot reach."""

WEIGHTS = [
    ("tests.conformance.torch_cases", "torch.horovod"),
    ("tests.conformance.keras_cases", "keras.multiworker"),
    ("tests.conformance.torch_cases", "torch.torch_distributed"),
    ("tests.conformance.torch_cases", "torch.parameter_server"),
    ("tests.conformance.keras_cases", "keras.horovod"),
    ("tests.conformance.keras_cases", "keras.parameter_server"),
]
"""The modules and names of cases; the first one runs by default."""

PLAIN = ("tests.conformance.torch_cases", "torch.torch_distributed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose what runs by default: the rest takes long, and needs --matrix."""
    every = metafunc.config.getoption("--matrix")
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", WEIGHTS if every else WEIGHTS[:1], ids=lambda case: case[1])
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", ["computed", "shards", "arrays"] if every else ["computed"])
    if "strike" in metafunc.fixturenames:
        metafunc.parametrize("strike", [kill_rank, kill_node, cut_link] if every else [kill_rank])
    if "loss" in metafunc.fixturenames:
        metafunc.parametrize("loss", [kill_rank, kill_node, cut_link] if every else [])


@pytest.mark.slow
def test_two_hosts_learn_the_weights_of_one_process(cluster, case):
    worst = cluster.driver.run(host_jobs.worst_weight, *case)
    print(f"{case[1]}: the largest difference between two weights is {worst:.1e}")


@pytest.mark.slow
def test_a_host_receives_only_the_rows_of_its_ranks(cluster, kind):
    before = [host.traffic() for host in cluster.hosts]
    result = cluster.driver.run(host_jobs.fit_wide, kind, ROWS, WIDTH, SHARDS, WIDE_BATCH)
    after = [host.traffic() for host in cluster.hosts]
    received = [now[0] - then[0] for now, then in zip(after, before, strict=True)]
    print(f"{kind}: received {[f'{count:,}' for count in received]} of {2 * NEEDED:,} bytes; needed {NEEDED:,}")
    assert max(received) <= 1.1 * NEEDED
    for name, value in cluster.driver.run(alone_on_wide_rows).items():
        np.testing.assert_allclose(result["weights"][name], value, rtol=1e-5, atol=1e-6)


def alone_on_wide_rows() -> dict[str, np.ndarray]:
    """Train on the same rows in one process, without Orca."""
    import torch

    from orca.testing.cases import SEED, batches

    rows = host_jobs.wide_rows(0, ROWS, WIDTH)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches(rows["x"], rows["y"], epochs=1, batch_size=WIDE_BATCH, seed=SEED):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def kill_rank(cluster: HostCluster, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_node(cluster: HostCluster, pid: int) -> None:
    """Kill the raylet, or Spark's worker, of the second host."""
    name = cluster.hosts[1].name
    if isinstance(cluster.started, SparkHosts):
        cluster.started.workers[name].kill()
    else:
        for process in cluster.hosts[1].processes():
            if process.name() == "raylet":
                process.kill()


def cut_link(cluster: HostCluster, pid: int) -> None:
    cluster.hosts[1].cut()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fault_on_the_second_host_ends_the_call_with_one_error(cluster, strike, tmp_path):
    second = cluster.hosts[1]
    error, ranks, seconds = struck(cluster, strike, tmp_path)
    print(f"{strike.__name__}: {seconds:.1f} s: {error}")
    assert seconds <= FAULT_SECONDS
    assert error.host == second.name
    assert second.name in str(error)
    second.connect()
    assert_nothing_left(cluster, ranks)
    if strike is not kill_rank:
        cluster.started.join(second)
    cluster.driver.run(await_slots, 2)
    cluster.driver.run(host_jobs.worst_weight, *PLAIN)


def struck(
    cluster: HostCluster, strike: Callable[[HostCluster, int], None], folder: Path
) -> tuple[WorkerError, list[int], float]:
    """Let a fault strike the second host while it trains; return the error, the ranks and how long it took."""
    cluster.driver.start(host_jobs.fit_until_killed, str(folder), *PLAIN)
    ranks = strike_second(cluster, strike, folder)
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        cluster.driver.result(2 * FAULT_SECONDS)
    return caught.value, ranks, time.monotonic() - began


def strike_second(cluster: HostCluster, strike: Callable[[HostCluster, int], None], folder: Path) -> list[int]:
    """Let a fault strike the second host as soon as both train; return the processes of the ranks."""
    places = [folder / f"rank{rank}" for rank in range(host_jobs.WORKERS)]
    assert wait_until(lambda: all(place.exists() for place in places), 60), cluster.driver.log()
    ranks = dict(place.read_text().split() for place in places)
    assert sorted(ranks) == [host.name for host in cluster.hosts]
    strike(cluster, int(ranks[cluster.hosts[1].name]))
    return [int(pid) for pid in ranks.values()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_with_min_workers_survives_a_fault_on_the_second_host_and_ends_like_an_undisturbed_one(
    cluster, loss, tmp_path
):
    second, case = cluster.hosts[1], host_jobs.case_of(*PLAIN)
    weights, history = cluster.driver.run(host_jobs.undisturbed, *PLAIN)
    cluster.driver.start(host_jobs.fit_through_fault, str(tmp_path), *PLAIN)
    ranks, struck = strike_second(cluster, loss, tmp_path), time.monotonic()
    (tmp_path / host_jobs.STRUCK).write_text(str(struck))
    result = cluster.driver.result(CONTINUE_SECONDS + FAULT_SECONDS)
    moment, step, world = (tmp_path / host_jobs.CONTINUED).read_text().split()
    seconds, lines, changes = float(moment) - struck, result["lines"], result["history"].changes
    print(f"{loss.__name__}: step {step} with {world} workers after {seconds:.1f} s, weights apart by up to")
    print(f"{result['relative']:.1e} of one, {result['absolute']:.1e}; {lines}")
    second.connect()
    assert_nothing_left(cluster, ranks)
    for name, value in weights.items():
        np.testing.assert_allclose(result["weights"][name], value, rtol=case.rtol, atol=case.atol, err_msg=name)
    np.testing.assert_allclose(result["history"]["loss"], history["loss"], rtol=1e-5)
    assert seconds <= CONTINUE_SECONDS
    if loss is kill_rank:
        assert changes == []
        assert re.fullmatch(r"restarting after step [1-9]\d* \(failure 1 of 1 allowed\)", lines[-1])
        assert second.name in lines[0]
    else:
        [line] = changes
        assert re.match(rf"fit continues with 1 of 2 workers from step [1-9]\d* \(rank . on {second.name} ", line)
        cluster.started.join(second)
    cluster.driver.run(await_slots, 2)
    cluster.driver.run(host_jobs.worst_weight, *PLAIN)


@pytest.mark.ray
@pytest.mark.slow
def test_ranks_start_beside_a_host_that_ray_has_not_given_up_yet(request, monkeypatch):
    if unavailable() or not request.config.getoption("--matrix"):
        pytest.skip(unavailable() or "needs --matrix")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "1000")
    with Hosts(2) as hosts:
        # Ray prefers the second host, which has more CPUs, and takes it for alive.
        ray = RayHosts(hosts, cpus=4, head_cpus=1)
        with Driver(hosts[0], ray.options) as driver:
            driver.run(await_slots, 5)
            times = [time.monotonic()]
            driver.run(host_jobs.worst_weight, *PLAIN, 1)
            times.append(time.monotonic())
            hosts[1].cut()
            driver.run(host_jobs.worst_weight, *PLAIN, 1)
            times.append(time.monotonic())
            before, after = np.diff(times)
            print(f"trained within {before:.1f} s, and within {after:.1f} s beside the lost host")
            assert after - before <= START_SECONDS
            assert driver.run(host_jobs.nodes) == 2
            hosts[1].connect()


def assert_nothing_left(cluster: HostCluster, ranks: list[int]) -> None:
    """Assert that the ranks have ended and that no host keeps files of theirs."""

    def left() -> list[object]:
        files = [path for host in cluster.hosts for path in host.folder.glob("orca-*")]
        return [pid for pid in ranks if psutil.pid_exists(pid)] + files

    assert wait_until(lambda: not left(), LEFT_SECONDS, step=0.2), left()


def test_horovod_that_ignores_the_interface_is_reported_if_the_host_name_leads_elsewhere():
    with pytest.raises(ResourceError, match=r"localhost resolves to .*127\.0\.0\.1 instead of 192\.0\.2\.1"):
        check_host_name("localhost", "192.0.2.1", several=True)
    with pytest.raises(ResourceError, match="resolves to nothing"):
        check_host_name("no-such-host.invalid", "127.0.0.1", several=False)
    check_host_name("localhost", "192.0.2.1", several=False)
    check_host_name("localhost", "127.0.0.1", several=True)
