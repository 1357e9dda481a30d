"""Cells of the fault matrix that need a driver of their own: one that is killed, or has little of something."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import psutil

from orca.testing.backend import SLOTS
from orca.testing.cases import SEED, BackendCase
from orca.testing.fault_cells import BATCH, WORKERS, FaultResult, Scene, perform_cell
from orca.testing.fault_kinds import ERROR, FAULTS, FaultKind
from orca.testing.moments import Ambush
from orca.testing.report import FAILED, PASSED, SKIPPED, NotApplicable

if TYPE_CHECKING:
    from orca.context import Context

MARK = "ORCA_TESTING_CELL"
"""A variable that all processes of a cell inherit."""
CELL_SECONDS = 240.0
_ROOT = ("unshare", "--user", "--map-root-user")
_BOXES = {
    "full disk": (*_ROOT, "--mount", "sh", "-c", 'mount -t tmpfs -o size=48m none "$TMPDIR" && exec "$@"', "sh"),
    "ports taken": (
        *(*_ROOT, "--net", "sh", "-c"),
        'ip link set lo up && echo 42000 42199 > /proc/sys/net/ipv4/ip_local_port_range && exec "$@"',
        "sh",
    ),
    "network cut": (*_ROOT, "--net", "--mount", "--uts", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
}
"""Programs around the driver: a small disk, few ports, a network of its own. They need no privileges."""


def perform_apart(kind: FaultKind, phase: str, case: BackendCase, runtime: str) -> FaultResult:
    """Run one cell with a new driver and return its result."""
    began, outcome, detail, ended, left = time.monotonic(), PASSED, "", "", ""
    to_end: float | None = None
    try:
        with _Drivers(kind, phase, case, runtime) as drivers:
            if kind.name != "driver killed":
                return drivers.result()
            to_end, left = drivers.kill()
            ended = ERROR
            assert not left, f"left behind: {left}"
    except NotApplicable as reason:
        outcome, detail = SKIPPED, str(reason)
    except Exception as error:
        outcome, detail = FAILED, f"{type(error).__name__}: {error}"
    name, seconds = f"{kind.name} in {phase}", time.monotonic() - began
    return FaultResult(name, seconds, outcome, detail, case.title, runtime, kind.name, phase, ended, to_end, left)


class _Drivers:
    """The driver of a cell and, if it is killed, the one after it. They share a temporary folder."""

    def __init__(self, kind: FaultKind, phase: str, case: BackendCase, runtime: str) -> None:
        self._kind, self._phase, self._case, self._runtime = kind, phase, case, runtime
        self._mark = uuid.uuid4().hex
        self._box = _BOXES.get(kind.name, ())
        if self._box and subprocess.run([*self._box, "true"], env=self._environment("/tmp"), **_QUIET).returncode:
            raise NotApplicable(f"this machine does not allow {' '.join(self._box[:4])}")
        self._place = tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True)

    def __enter__(self) -> _Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._family():
            with suppress(psutil.Error):
                process.kill()
        self._place.cleanup()

    def result(self) -> FaultResult:
        """Let a driver run the whole cell; return the result that it wrote."""
        self._finish(self._start("cell"))
        result: FaultResult = pickle.loads(Path(self._place.name, "result").read_bytes())
        return result

    def kill(self) -> tuple[float, str]:
        """Kill a driver at the moment; return when all its ranks had ended, and what is left behind."""
        driver = self._start("victim")
        self._await(driver)
        ranks = [process for process in self._family() if process.pid != driver.pid and self._counts(process)]
        assert ranks or self._runtime == "spark", "the driver has no process to leave behind"
        driver.kill()
        began = time.monotonic()
        driver.wait()
        _, alive = psutil.wait_procs(ranks, timeout=self._kind.seconds)
        seconds = time.monotonic() - began
        self._finish(self._start("successor"))
        files = [path.name for pattern in ("orca-*", ".orca-*") for path in self._tmp.glob(pattern)]
        left = {"processes": [process.pid for process in alive], "files": files}
        return seconds, str({what: items for what, items in left.items() if items} or "")

    @property
    def _tmp(self) -> Path:
        return Path(self._place.name, "t")

    def _environment(self, tmp: str) -> dict[str, str]:
        path = os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path)
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": tmp, MARK: self._mark}

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        self._tmp.mkdir(exist_ok=True)
        job = Path(self._place.name, "job")
        job.write_bytes(cloudpickle.dumps((self._kind.name, self._phase, self._case, self._runtime)))
        command = [sys.executable, "-m", "orca.testing.fault_apart", role, self._place.name]
        with open(Path(self._place.name, "log"), "ab") as log:
            return subprocess.Popen(
                [*self._box, *command], env=self._environment(str(self._tmp)), stdout=log, stderr=log
            )

    def _finish(self, driver: subprocess.Popen[bytes]) -> None:
        try:
            code = driver.wait(CELL_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {CELL_SECONDS:.0f} s: {self._log()}") from None
        assert code == 0, f"the driver ended with {code}: {self._log()}"

    def _await(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until a process waits at the moment."""
        ambush, idle = Ambush(self._place.name, "", ""), Path(self._place.name, "idle")
        end = time.monotonic() + CELL_SECONDS
        while ambush.struck is None and not idle.exists():
            assert driver.poll() is None, f"the driver ended before the fault: {self._log()}"
            assert time.monotonic() < end, f"no process reached the moment: {self._log()}"
            time.sleep(0.02)

    def _log(self) -> str:
        return Path(self._place.name, "log").read_text(errors="replace")[-3000:]

    def _family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _counts(self, process: psutil.Process) -> bool:
        """Whether a process is Orca's; Ray ends its own in its own time."""
        with suppress(psutil.Error):
            return self._runtime != "ray" or "_RankActor" in " ".join(process.cmdline())
        return False


_QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextmanager
def _started(kind: str, runtime: str) -> Iterator[Context]:
    """Start the context of a cell."""
    from orca.context import init_orca_context

    if kind == "raylet killed":
        from ray.cluster_utils import Cluster

        # No rank runs beside the driver: the loss of its own raylet would end it.
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(WORKERS + 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        with init_orca_context(runtime=runtime, address=cluster.address) as context:
            yield context
        cluster.shutdown()
    elif kind == "executor killed":
        with init_orca_context(runtime=runtime, master=f"local-cluster[{WORKERS + 1},1,1024]") as context:
            yield context
    elif kind == "network cut":
        from orca.testing.host_clusters import await_slots, ray_on_two_hosts

        with ray_on_two_hosts() as address, init_orca_context(runtime=runtime, address=address) as context:
            await_slots(2)
            yield context
    else:
        with init_orca_context(runtime=runtime, cores=SLOTS) as context:
            yield context


def _cell(kind: FaultKind, phase: str, case: BackendCase, runtime: str, folder: Path) -> None:
    with _started(kind.name, runtime) as context:
        result = perform_cell(kind, phase, case, context)
    (folder / "result").write_bytes(pickle.dumps(result))


def _victim(kind: FaultKind, phase: str, case: BackendCase, runtime: str, folder: Path) -> None:
    with _started(kind.name, runtime) as context:
        scene = Scene(kind, phase, case, context, str(folder))
        scene.check_fit(scene.fit(checkpoints=True))
        if phase == "start":
            scene.est.shutdown()
        if phase == "idle":
            (folder / "idle").touch()
            signal.pause()
        with scene.ambush.armed():
            scene.call()
    raise AssertionError("the driver was not killed")


def _successor(kind: FaultKind, phase: str, case: BackendCase, runtime: str, folder: Path) -> None:
    """Continue from the checkpoint of the killed driver."""
    with _started(kind.name, runtime) as context:
        scene = Scene(kind, phase, case, context, str(folder))
        scene.est = case.make(WORKERS, seed=SEED, model_dir=f"{folder}/model")
        scene.check_checkpoints()
        history = scene.est.fit(scene.x, scene.y, batch_size=BATCH, epochs=2, resume=True)
        assert scene.est.epoch == 2, f"epoch {scene.est.epoch} after resuming from epoch 1"
        scene.check_fit(history)


def main() -> None:
    """Run as the driver of a cell."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    name, phase, case, runtime = pickle.loads((folder / "job").read_bytes())
    {"cell": _cell, "victim": _victim, "successor": _successor}[role](FAULTS[name], phase, case, runtime, folder)


if __name__ == "__main__":
    main()
