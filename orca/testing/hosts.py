"""Two hosts on this machine, as network namespaces with a link between them that can be cut.

It has to run in a network namespace of its own in which this user is root: ``unshare --user --map-root-user --net``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orca.launch.processes import wait_until

HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 6399
_LINK, _PEER, _NAME = "orca0", "orca1", "orca-other-host"
_START_SECONDS = 60.0
_hosts: list[Hosts] = []


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")


class Hosts:
    """This host and another one, each with a Ray node."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        # A host name of its own: ranks of one name on one machine take each other for neighbors.
        script = f"hostname {_NAME}; ip link set lo up; exec sleep 3600"
        holder = self._start("unshare", "--net", "--uts", "sh", "-c", script)
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, 10)
        self._enter = ("nsenter", "-t", str(holder.pid), "--net", "--uts")
        _run("ip", "link", "add", _LINK, "type", "veth", "peer", "name", _PEER, "netns", str(holder.pid))
        _run("ip", "address", "add", f"{HERE}/24", "dev", _LINK)
        _run("ip", "link", "set", _LINK, "up")
        _run(*self._enter, "ip", "address", "add", f"{THERE}/24", "dev", _PEER)
        _run(*self._enter, "ip", "link", "set", _PEER, "up")

    def head(self) -> None:
        """Start a cluster with a node on this host."""
        self._start(*_node("--head", f"--node-ip-address={HERE}", f"--port={PORT}", "--include-dashboard=false"))
        if not wait_until(_answers, _START_SECONDS):
            raise AssertionError(f"Ray did not start within {_START_SECONDS:.0f} s")

    def join(self) -> None:
        """Start a node on the other host."""
        self._start(*self._enter, *_node(f"--address={HERE}:{PORT}", f"--node-ip-address={THERE}"))

    def close(self) -> None:
        """End everything that was started."""
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        self._started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self._started[-1]


def _node(*options: str) -> list[str]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    return [*command, "--disable-usage-stats", *options]


def _answers() -> bool:
    try:
        socket.create_connection((HERE, PORT), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def two_hosts() -> Iterator[str]:
    """Start a Ray node on each of two hosts; give the cluster's address."""
    # Nodes of one cluster need one token, which need not be secret here: nobody else reaches this network.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    hosts = Hosts()
    _hosts.append(hosts)
    try:
        hosts.head()
        hosts.join()
        yield f"{HERE}:{PORT}"
    finally:
        _hosts.remove(hosts)
        hosts.close()


def await_nodes(count: int = 2) -> None:
    """Wait until the cluster has this number of CPUs."""
    import ray

    if not wait_until(lambda: ray.cluster_resources().get("CPU", 0) >= count, _START_SECONDS, step=0.2):
        raise AssertionError(f"the cluster does not have {count} CPUs after {_START_SECONDS:.0f} s")


def cut() -> None:
    """Cut the link between the hosts."""
    _run("ip", "link", "set", _LINK, "down")


def reconnect() -> None:
    """Connect the hosts again, with a new Ray node on the other one: Ray has given up the old one."""
    _run("ip", "link", "set", _LINK, "up")
    _hosts[-1].join()
    await_nodes()
