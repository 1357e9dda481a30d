"""Measures fit on two hosts: weights, bytes over each host's network interface, and memory and disk per host.

The hosts are network namespaces of this machine (orca.testing.hosts), with a Ray of two nodes or a Spark standalone
cluster of two workers. Bytes are those of the whole call, gradients and control messages included. Memory counts what
processes share once, and is that above the idle cluster with warm processes; disk is what the temporary folders hold.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orca.testing import host_jobs
from orca.testing.host_clusters import Driver, RayHosts, SparkHosts, await_slots
from orca.testing.hosts import Host, Hosts, unavailable

CLUSTERS = {"ray": RayHosts, "spark": SparkHosts}
BACKENDS = [
    ("tests.conformance.torch_cases", "torch.torch_distributed"),
    ("tests.conformance.torch_cases", "torch.horovod"),
    ("tests.conformance.torch_cases", "torch.parameter_server"),
    ("tests.conformance.keras_cases", "keras.multiworker"),
    ("tests.conformance.keras_cases", "keras.parameter_server"),
    ("tests.conformance.mxnet_cases", "mxnet.parameter_server"),
]
WIDTH, BATCH = 1000, 512
SAMPLE_SECONDS = 0.5
MB = 1e6


class Watch:
    """Samples the memory and disk of hosts until it is stopped."""

    def __init__(self, hosts: Hosts) -> None:
        self._base = [_held(host) for host in hosts]
        self._hosts = hosts
        self._stop = threading.Event()
        self.peaks = [(0, 0, 0) for _ in hosts]
        """By host: the peaks of memory, of disk, and of both together."""
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for place, host in enumerate(self._hosts):
                memory, disk = (now - then for now, then in zip(_held(host), self._base[place], strict=True))
                peak = self.peaks[place]
                self.peaks[place] = max(peak[0], memory), max(peak[1], disk), max(peak[2], memory + disk)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _held(host: Host) -> tuple[int, int]:
    return host.memory(), host.disk()


@contextmanager
def started(runtime: str, **options: Any) -> Iterator[tuple[Hosts, Driver]]:
    """Start two hosts with a cluster and a driver on the first."""
    with Hosts(2) as hosts:
        cluster = CLUSTERS[runtime](hosts, **options)
        with Driver(hosts[0], cluster.options) as driver:
            driver.run(await_slots, 2)
            yield hosts, driver


def measure(hosts: Hosts, driver: Driver, kind: str, rows: int, shards: int) -> None:
    """Fit once and print what the hosts received, sent and held."""
    needed = rows // 2 * host_jobs.row_bytes(WIDTH)
    before = [host.traffic() for host in hosts]
    watch = Watch(hosts)
    try:
        result = driver.run(host_jobs.fit_wide, kind, rows, WIDTH, shards, BATCH, seconds=600)
    finally:
        watch.stop()
    for place, host in enumerate(hosts):
        received, sent = (now - then for now, then in zip(host.traffic(), before[place], strict=True))
        memory, disk, both = (size / MB for size in watch.peaks[place])
        print(
            f"  {kind:9} {host.name}: received {received / MB:7.1f} MB, sent {sent / MB:7.1f} MB; its ranks need "
            f"{needed / MB:.1f} MB ({received / needed:.2f} x), all rows {2 * needed / MB:.1f} MB; "
            f"peak memory {memory:.0f} MB, disk {disk:.0f} MB, together {both:.0f} MB; {result['seconds']:.1f} s",
            flush=True,
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtimes", default="ray,spark")
    parser.add_argument("--kinds", default="arrays,shards,computed", help="where the rows come from; empty for none")
    parser.add_argument("--rows", type=int, default=12_000, help=f"rows of {host_jobs.row_bytes(WIDTH)} bytes")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--weights", action="store_true", help="compare the weights of each backend with one process")
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # the drivers import the cases of the tests
    if unavailable():
        raise SystemExit(f"error: {unavailable()}")
    for runtime in arguments.runtimes.split(","):
        print(f"{runtime}: two hosts, a rank on each", flush=True)
        with started(runtime) as (hosts, driver):
            for case in BACKENDS if arguments.weights else ():
                worst = driver.run(host_jobs.worst_weight, *case)
                print(f"  {case[1]:25} weights differ from one process by {worst:.1e} at most", flush=True)
            # The processes of the first call stay, so that they count as base.
            driver.run(host_jobs.fit_wide, "computed", 200, WIDTH, 2, BATCH)
            for kind in arguments.kinds.split(",") if arguments.kinds else ():
                measure(hosts, driver, kind, arguments.rows, arguments.shards)


if __name__ == "__main__":
    main()
