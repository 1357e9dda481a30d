"""A Ray and a Spark standalone cluster on several hosts, and drivers on them.

.. code-block:: python

    with Hosts(2) as hosts:
        ray = RayHosts(hosts)
        with Driver(hosts[0], ray.options) as driver:
            print(driver.run(train))  # the driver of `train` runs on the first host, with a context on the cluster
"""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from orca.launch.processes import wait_until
from orca.testing.hosts import Host, Hosts

if TYPE_CHECKING:
    from typing import Self

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
# Nodes of one cluster need one token, which need not be secret here: nobody else reaches this network.
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}


class RayHosts:
    """A Ray cluster with its head on the first host and one node on each; every node has `cpus` CPUs."""

    port = 6399

    def __init__(self, hosts: Hosts, cpus: int = 1, head_cpus: int | None = None) -> None:
        self._cpus = cpus
        self.head = hosts[0]
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        """The processes that started the nodes, by the names of their hosts."""
        self.address = f"{self.head.address}:{self.port}"
        self.options = {"runtime": "ray", "address": self.address}
        head = (f"--port={self.port}", "--head", "--include-dashboard=false")
        self._start(self.head, *head, cpus=cpus if head_cpus is None else head_cpus)
        reached = wait_until(lambda: self._head_listens(), _START_SECONDS, step=0.1)
        assert reached, f"Ray did not start within {_START_SECONDS:.0f} s: {tail(self.head, 'ray')}"
        for host in list(hosts)[1:]:
            self.join(host)

    def _head_listens(self) -> bool:
        """Whether the head's port is open, seen from this process, which may be outside of the hosts' network."""
        port = f":{self.port:04X} "
        listening = "0A"
        for name in ("tcp", "tcp6"):
            rows = Path(f"/proc/{self.head.pid}/net/{name}").read_text().splitlines()[1:]
            if any(port in row.split()[1] + " " and row.split()[3] == listening for row in rows):
                return True
        return False

    def join(self, host: Host) -> None:
        """Start a node on a host, also after its old one was lost."""
        self._start(host, f"--address={self.address}", cpus=self._cpus)

    def _start(self, host: Host, *options: str, cpus: int) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}"]
        more = (f"--node-ip-address={host.address}", f"--temp-dir={host.folder}/ray", "--disable-usage-stats")
        environment = host.environment(**RAY_TOKEN)
        with open(host.folder / "ray.log", "ab") as log:
            self.nodes[host.name] = host.start(*command, *more, *options, environment=environment, log=log)


class SparkHosts:
    """A Spark standalone cluster with its master on the first host and a worker on each."""

    port = 7077

    def __init__(self, hosts: Hosts, cores: int = 1, memory: str = "2g") -> None:
        master = hosts[0]
        self._cores, self._memory = cores, memory
        self.master = f"spark://{master.address}:{self.port}"
        self.options = {
            "runtime": "spark",
            "master": self.master,
            "conf": {
                "spark.executor.memory": memory,
                "spark.executor.cores": cores,
                "spark.ui.enabled": "false",
            },
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        """The processes of the workers, by the names of their hosts."""
        address = ("--host", master.address, "--port", str(self.port), "--webui-port", "0")
        self._start(master, "master.Master", *address)
        for host in hosts:
            self.join(host)

    def join(self, host: Host) -> None:
        """Start a worker on a host."""
        size = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", f"{host.folder}/work")
        self.workers[host.name] = self._start(
            host, "worker.Worker", self.master, "--host", host.address, "--webui-port", "0", *size
        )

    @staticmethod
    def _start(host: Host, role: str, *options: str) -> subprocess.Popen[bytes]:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise AssertionError("PySpark is not installed")
        home = Path(spec.origin).parent
        environment = host.environment(
            **_spark_settings(host), SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable, SPARK_DAEMON_MEMORY="256m"
        )
        with open(host.folder / "spark.log", "ab") as log:
            command = (str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *options)
            return host.start(*command, environment=environment, log=log)


def _spark_settings(host: Host) -> dict[str, str]:
    # Java knows no TMPDIR.
    return {"SPARK_LOCAL_IP": host.address, "SPARK_LOCAL_DIRS": str(host.folder)}


class Driver:
    """A process on a host that runs functions one after another, with a context on a cluster."""

    def __init__(self, host: Host, options: dict[str, Any]) -> None:
        self.host = host
        # A path for a socket is limited in length; the folder of a host is short.
        place = str(host.folder / "driver")
        with suppress(FileNotFoundError):
            os.unlink(place)
        environment = host.environment(**_spark_settings(host), **RAY_TOKEN)
        with mpc.Listener(place, "AF_UNIX") as listener, open(host.folder / "driver.log", "ab") as log:
            self.process = host.start(
                sys.executable, "-m", "orca.testing.host_clusters", place, environment=environment, log=log
            )
            listener._listener._socket.settimeout(_START_SECONDS)  # type: ignore[attr-defined]
            self._connection = listener.accept()
        self._call(_start_context, (options,), 2 * _START_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = 170.0) -> Any:
        """Run a function in the driver and return its result; raise what it raises."""
        return self._call(function, args, seconds)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Start a function in the driver; `result` returns what it returns."""
        self._connection.send_bytes(cloudpickle.dumps((function, args)))

    def result(self, seconds: float = 170.0) -> Any:
        """Wait for the function that runs; return its result or raise what it raises."""
        if not self._connection.poll(seconds):
            raise AssertionError(f"the driver did not answer within {seconds:.0f} s: {self.log()}")
        try:
            answer = self._connection.recv_bytes()
        except EOFError:
            raise AssertionError(f"the driver ended with {self.process.wait(5)}: {self.log()}") from None
        error, value = pickle.loads(answer)
        if error is not None:
            raise error
        return value

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
        self.start(function, *args)
        return self.result(seconds)

    def log(self) -> str:
        """Return the end of what the driver has written."""
        return tail(self.host, "driver")

    def close(self) -> None:
        """Stop the context and end the process."""
        with suppress(OSError):
            self._connection.send_bytes(cloudpickle.dumps(None))
            wait_until(lambda: self.process.poll() is not None, _STOP_SECONDS)
        self._connection.close()
        self.process.kill()
        self.process.wait()


_here: list[tuple[Hosts, RayHosts]] = []


@contextmanager
def ray_on_two_hosts() -> Iterator[str]:
    """Start a Ray node on this host, in namespaces of its own, and on another one; give the cluster's address."""
    os.environ.update(RAY_TOKEN)
    with Hosts(2, here=True) as hosts:
        cluster = RayHosts(hosts)
        _here.append((hosts, cluster))
        try:
            yield cluster.address
        finally:
            _here.pop()


def cut_link() -> Callable[[], None]:
    """Cut the link to the other host; return a function that connects it again, with a new Ray node.

    Ray has given up the old node by then.
    """
    hosts, cluster = _here[-1]
    hosts[1].cut()

    def undo() -> None:
        hosts[1].connect()
        cluster.join(hosts[1])
        await_slots(len(hosts))

    return undo


def tail(host: Host, name: str) -> str:
    """Return the end of a log on a host: ray, spark or driver."""
    path = host.folder / f"{name}.log"
    return path.read_text(errors="replace")[-3000:] if path.exists() else ""


def _start_context(options: dict[str, Any]) -> None:
    from orca.context import init_orca_context

    init_orca_context(**options)


def await_slots(count: int, seconds: float = _START_SECONDS) -> None:
    """Wait until the cluster of the active context has this number of slots."""
    from orca.context import current

    launcher = current().launcher()
    if not wait_until(lambda: launcher.slots() >= count, seconds, step=0.2):
        raise AssertionError(f"the cluster has {launcher.slots()} and not {count} slots after {seconds:.0f} s")


def _serve(place: str) -> None:
    """Run the functions that arrive, until None or the end of the connection."""
    from orca.context import stop_orca_context

    connection = mpc.Client(place, "AF_UNIX")
    with suppress(EOFError):
        while (job := pickle.loads(connection.recv_bytes())) is not None:
            function, args = job
            try:
                answer = cloudpickle.dumps((None, function(*args)))
            except BaseException as error:
                traceback.print_exc()
                answer = cloudpickle.dumps((error, None))
            connection.send_bytes(answer)
    stop_orca_context()


if __name__ == "__main__":
    _serve(sys.argv[1])
