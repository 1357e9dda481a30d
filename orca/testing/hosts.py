"""Hosts on this machine: network namespaces with a bridge between them, whose links can be cut.

Each host has a host name, an address, a temporary folder and shared memory of its own. As on many real hosts, the host
name resolves to a loopback address, and a second interface has an address that is the same on every host.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from orca.launch.processes import wait_until

if TYPE_CHECKING:
    from typing import Self

NETWORK = "10.77.0"
INTERFACES = ("eth0", "ens5", "enp3s0")
"""The interfaces have different names, as those of different machines do."""
_OTHER_INTERFACE, _OTHER_ADDRESS = "docker0", "172.17.0.1/16"
_SWITCH = "orca-switch"
_START_SECONDS = 10.0
_END_SECONDS = 10.0
_HOLD = "ip link set lo up; echo; exec sleep 86400"
_NAMESPACES = ("--net", "--uts", "--mount")
_ENTRANCES = (("unshare", *_NAMESPACES), ("unshare", "--user", "--map-root-user", *_NAMESPACES))
"""How to create the namespaces: as root, or as root of a user namespace."""
_NEEDED = ("ip", "unshare", "nsenter")


@functools.cache
def unavailable() -> str:
    """Return why this machine cannot make hosts; empty if it can."""
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian, Ubuntu: apt-get install iproute2 util-linux)"
    return "" if _entrance() else "this machine does not allow network namespaces"


@functools.cache
def _entrance() -> tuple[str, ...]:
    test = "ip link add name orca0 type bridge && ip link add name orca1 type veth peer name orca2"
    for entrance in _ENTRANCES:
        if subprocess.run([*entrance, "sh", "-c", test], capture_output=True).returncode == 0:
            return entrance
    return ()


def _network_of_first() -> str:
    """Return the network namespace of the machine's first process, if this user may know it."""
    with suppress(OSError):
        return os.readlink("/proc/1/ns/net")
    return ""


def _start_guard(networks: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends those of some networks when this process ends without doing so, for example killed."""
    command = [sys.executable, "-m", "orca.testing.hosts", str(folder), *networks]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _guard(folder: str, networks: list[str]) -> None:
    sys.stdin.buffer.read()  # until the process that has started this one is gone
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.readlink(f"/proc/{process.pid}/ns/net") in networks:
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")


class _Namespaces:
    """Namespaces that live as long as a process of ours."""

    def __init__(self, entrance: tuple[str, ...]) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self.pid = os.getpid()
        self.prefix: tuple[str, ...] = ()
        if entrance:
            self._holder = holder = subprocess.Popen([*entrance, "sh", "-c", _HOLD], stdout=subprocess.PIPE)
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise AssertionError(f"{' '.join(entrance)} failed with exit code {holder.wait(_START_SECONDS)}")
            self.pid = holder.pid
            # A user namespace can be entered only if it is another one.
            user = ("--user", "--preserve-credentials") if "--user" in entrance else ()
            self.prefix = ("nsenter", "-t", str(self.pid), *user, *_NAMESPACES)
        self.network = os.readlink(f"/proc/{self.pid}/ns/net")

    def run(self, script: str) -> None:
        """Run a shell script as root of the namespaces."""
        _run(*self.prefix, "sh", "-ec", script)

    def close(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            assert self._holder.stdout is not None
            self._holder.stdout.close()


class Host:
    """One host: start processes on it, count its bytes, cut its link."""

    def __init__(self, number: int, switch: _Namespaces, entrance: tuple[str, ...], folder: Path) -> None:
        self.name = f"host{'abc'[number]}"
        self.address = f"{NETWORK}.{number + 1}"
        self.interface = INTERFACES[number]
        self.folder = folder
        """For logs; TMPDIR points there too, unless this process is on the host."""
        self._temporary = str(folder) if entrance else tempfile.gettempdir()
        self._port = f"port{number}"
        self._switch = switch
        self._started: list[subprocess.Popen[bytes]] = []
        self._namespaces = _Namespaces(entrance)
        self.pid = self._namespaces.pid
        """A process in the namespaces of this host."""
        self.network = self._namespaces.network
        self._connect_to_switch(folder)

    def _connect_to_switch(self, folder: Path) -> None:
        pid, other = self.pid, _OTHER_INTERFACE
        folder.mkdir()
        names = folder.with_name(f"{self.name}-names")
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        self._switch.run(
            f"ip link add {self._port} type veth peer name {self.interface} netns {pid};"
            f"ip link set {self._port} master {_SWITCH}; ip link set {self._port} up"
        )
        self._namespaces.run(
            f"hostname {self.name}; mount --make-rprivate /; mount --bind {names} /etc/hosts;"
            "mount -t tmpfs -o mode=1777 none /dev/shm;"
            f"ip address add {self.address}/24 dev {self.interface}; ip link set {self.interface} up;"
            f"ip link add {other} type bridge; ip address add {_OTHER_ADDRESS} dev {other}; ip link set {other} up"
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of processes on this host."""
        path = os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path)
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": self._temporary, **more}

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, log: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on this host."""
        output = log or subprocess.DEVNULL
        process = subprocess.Popen(
            [*self._namespaces.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=self.environment() if environment is None else environment,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this host, except for those that hold its namespaces or run this code."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid not in (self.pid, os.getpid()) and self._has(process)
        ]

    def _has(self, process: psutil.Process) -> bool:
        with suppress(OSError, psutil.Error):
            lives = process.status() != psutil.STATUS_ZOMBIE
            return lives and os.readlink(f"/proc/{process.pid}/ns/net") == self.network
        return False

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that the interface has received and sent so far."""
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == self.interface:
                words = counts.split()
                return int(words[0]), int(words[8])
        raise AssertionError(f"{self.name} has no {self.interface}")

    def memory(self) -> int:
        """Return the bytes of memory of all processes and of shared memory; what several share counts once."""
        # A process that wrote to shared memory may have ended, so that its pages are in no process's account.
        shared = os.statvfs(f"/proc/{self.pid}/root/dev/shm")
        total = (shared.f_blocks - shared.f_bfree) * shared.f_frsize
        for process in self.processes():
            with suppress(OSError):
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                sizes = {line.split()[0]: int(line.split()[1]) << 10 for line in rollup[1:]}
                total += sizes["Pss:"] - sizes.get("Pss_Shmem:", 0)
        return total

    def disk(self) -> int:
        """Return the bytes of the files in the temporary folder."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks << 9
        return total

    def cut(self) -> None:
        """Cut the link of this host to all others."""
        self._switch.run(f"ip link set {self._port} down")

    def connect(self) -> None:
        """Connect this host again."""
        self._switch.run(f"ip link set {self._port} up")

    def close(self) -> None:
        """End all processes of this host."""
        for process in reversed(self._started):
            process.terminate()
        wait_until(lambda: all(process.poll() is not None for process in self._started), _END_SECONDS)
        if self._namespaces.prefix:
            # Daemons, such as those of a killed raylet, have left the families of what was started here.
            for left in self.processes():
                with suppress(psutil.Error):
                    left.kill()
        for started in self._started:
            started.kill()
            started.wait()
        self._namespaces.close()


class Hosts:
    """Some hosts with a network between them, and nothing else in it.

    Args:
        count: The number of hosts, up to three.
        here: Whether the namespaces of this process become the first host. It must be root in them, and alone.
    """

    def __init__(self, count: int = 2, here: bool = False) -> None:
        self._all: list[Host] = []
        self._guard: subprocess.Popen[bytes] | None = None
        if here and os.readlink("/proc/self/ns/net") == _network_of_first():
            raise AssertionError("this process shares the network of the machine; start it with unshare --net")
        # A short path: Ray creates sockets below it.
        self.folder = Path(tempfile.mkdtemp(prefix="oh", dir="/tmp"))
        entrance = _ENTRANCES[0] if here else _entrance()
        self._switch = _Namespaces(entrance)
        try:
            inner: tuple[str, ...] = ()
            if "--user" in entrance:  # hosts belong to the switch's user namespace
                inner = ("nsenter", "-t", str(self._switch.pid), "--user", "--preserve-credentials")
            self._switch.run(f"ip link add {_SWITCH} type bridge; ip link set {_SWITCH} up")
            for number in range(count):
                mine = here and number == 0
                place = self.folder / "abc"[number]
                self._all.append(Host(number, self._switch, () if mine else (*inner, *_ENTRANCES[0]), place))
            networks = [self._switch.network, *(host.network for host in self._all[here:])]
            self._guard = _start_guard(networks, self.folder)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, number: int) -> Host:
        return self._all[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def close(self) -> None:
        """End all processes of the hosts and remove their networks and files."""
        for host in self._all:
            host.close()
        self._switch.close()
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2:])
