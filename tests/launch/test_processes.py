"""What may happen to the driver's surroundings: a stopped zygote, closed streams, deleted folders, limits, signals."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import orca
import orca.context as context_module
from orca.context import Context
from orca.core.scratch import write_pieces
from orca.errors import ResourceError
from orca.launch.base import Hello
from orca.launch.channel import Door, connect
from orca.launch.gang import Gang
from orca.launch.local import LocalLauncher
from orca.launch.rank_log import RankLog
from orca.testing.leftovers import listening
from tests.programs import ROOT, run


def answer(context, value: object) -> object:
    return value


def say(context, line: str, times: int) -> int:
    for _ in range(times):
        print(line)
    return os.stat(f"/proc/self/fd/{1}").st_size


def zygote_of(gang: Gang) -> int:
    """The process that forks a gang's ranks."""
    launcher = gang.launcher
    assert isinstance(launcher, LocalLauncher)
    return launcher._nurseries.get(launcher._preload)._process.pid


def alive(pid: int) -> bool:
    """Whether the process runs; one without a parent may wait for somebody to read its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_stopped_zygote_is_replaced(local: Context):
    gang = local.gang(2)
    assert gang.call(answer, 1) == [1, 1]
    gang.stop()
    stopped = zygote_of(gang)
    os.kill(stopped, signal.SIGSTOP)
    assert gang.call(answer, 2) == [2, 2]
    assert not alive(stopped)


def test_ranks_of_a_stopped_zygote_work_and_end(local: Context):
    gang = local.gang(2)
    assert gang.call(answer, 1) == [1, 1]
    pids = {hello.pid for hello in gang.places}
    zygote = zygote_of(gang)
    os.kill(zygote, signal.SIGSTOP)
    assert gang.call(answer, 2) == [2, 2]
    gang.stop()
    assert not any(map(alive, [zygote, *pids]))
    assert gang.call(answer, 3) == [3, 3]


def test_a_zygote_that_is_stopped_while_ranks_start_is_replaced(local: Context, monkeypatch: pytest.MonkeyPatch):
    gang = local.gang(2)
    assert gang.call(answer, 1) == [1, 1]
    gang.stop()
    fork, zygote = gang.launcher._fork, zygote_of(gang)

    def stop_first() -> None:
        fork_now = gang.launcher._nurseries.get(gang.launcher._preload)
        assert fork_now.alive
        monkeypatch.undo()
        # The orders are written to a process that will not read them.
        monkeypatch.setattr(type(fork_now), "stuck", False)
        os.kill(zygote, signal.SIGSTOP)
        fork()
        monkeypatch.undo()

    monkeypatch.setattr(gang.launcher, "_fork", stop_first)
    assert gang.call(answer, 2) == [2, 2]


def test_a_fork_that_fails_is_reported_with_its_reason(tmp_path: Path):
    (tmp_path / "no_fork.py").write_text(
        "import errno, os\n\ndef fork():\n    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n\n"
        "os.fork = fork\n"
    )
    output = run(
        """
        import orca
        context = orca.init_orca_context(cores=2)
        def answer(context):
            return 1
        try:
            context.gang(2, ("no_fork",)).call(answer)
        except orca.WorkerError as error:
            print(error)
        print(context.gang(1, ()).call(answer))
        """,
        PYTHONPATH=os.pathsep.join([str(ROOT), str(tmp_path)]),
    )
    assert "its process could not be created: Resource temporarily unavailable; the limit on processes" in output
    assert output.endswith("[1]\n")


FIT = """
import sys
import numpy as np, torch
from orca import Estimator, XShards
x = np.arange(40, dtype="f4").reshape(20, 2) / 40
est = Estimator.from_torch(model=torch.nn.Linear(2, 1), optimizer=torch.optim.SGD, loss=torch.nn.MSELoss(),
                           config={"lr": 0.1}, workers=2, seed=0)
"""


def test_closed_standard_streams(tmp_path: Path):
    program = FIT + textwrap.dedent(
        """
        import orca
        orca.OrcaContext.log_output = True
        try:
            est.fit(x, x[:, 0], epochs=2, batch_size=4, progress=True)
            outcome = str(est.predict(XShards.partition({"x": x})).collect()[0]["prediction"].shape)
        except BaseException as error:
            outcome = repr(error)
        open(sys.argv[1], "w").write(outcome)
        """
    )
    command = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    outcome = tmp_path / "outcome"
    arguments = [sys.executable, program, str(outcome)]
    subprocess.run(["/bin/sh", "-c", command, *arguments], timeout=150, env=environment, check=True)
    assert outcome.read_text() == "(10, 1)"


def test_a_deleted_working_folder(tmp_path: Path):
    folder = tmp_path / "gone"
    folder.mkdir()
    program = FIT + "import os, shutil\nshutil.rmtree(os.getcwd())\nprint(len(est.fit(x, x[:, 0], epochs=2)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, timeout=150, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_an_emptied_temporary_directory(tmp_path: Path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    output = run(
        FIT
        + textwrap.dedent(
            """
            import glob, shutil, tempfile
            from orca.errors import OrcaError
            shards = XShards.partition({"x": x, "y": x[:, 0]}, num_shards=2)
            est.fit(shards, epochs=1)
            for path in glob.glob(tempfile.gettempdir() + "/*"):
                shutil.rmtree(path, ignore_errors=True)
            print(est.fit(x, x[:, 0], epochs=1)["epoch"])
            try:
                shards.collect()
            except OrcaError as error:
                print(error)
            est.shutdown()
            shutil.rmtree(tempfile.gettempdir())
            print(est.fit(x, x[:, 0], epochs=1)["epoch"])
            """
        ),
        TMPDIR=str(folder),
    )
    first, error, last = output.splitlines()
    assert (first, last) == ("[2]", "[3]")
    assert "is gone: another program has emptied the temporary directory" in error


def test_more_shards_than_descriptors():
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))\n"
    output = run(
        limit
        + FIT
        + textwrap.dedent(
            """
            x = np.ones((700, 2048), "f4")
            shards = XShards.partition({"x": x, "y": x[:, 0]}, num_shards=700)
            print(len(shards.collect()))
            est = Estimator.from_torch(model=torch.nn.Linear(2048, 1), optimizer=torch.optim.SGD,
                                       loss=torch.nn.MSELoss(), config={"lr": 0.0}, workers=2, seed=0)
            print(est.fit(shards, epochs=1, batch_size=100)["rows"])
            """
        )
    )
    assert output.splitlines() == ["700", "[700]"]


LEAVE = """
import os, sys, time
import numpy as np
from orca import XShards, init_orca_context
shards = XShards.partition(np.ones((1000, 1000), "f4"), num_shards=2)
if "ranks" in sys.argv:
    shards = shards.transform_shard(lambda shard: shard + 1)
    shards.collect()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "use"), [(signal.SIGTERM, "none"), (signal.SIGTERM, "ranks"), (signal.SIGKILL, "ranks")]
)
def test_a_driver_that_is_ended_leaves_no_files(tmp_path: Path, number: signal.Signals, use: str):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE, use], env=environment, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        assert list(tmp_path.glob("orca-shards-*"))
        driver.send_signal(number)
        assert driver.wait(30) == -number
    end = time.monotonic() + 20
    while list(tmp_path.glob("orca-*")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(tmp_path.glob("orca-*"))


def test_a_program_that_handles_sigterm_keeps_its_handler():
    output = run(
        """
        import signal
        import numpy as np
        def mine(*_):
            pass
        signal.signal(signal.SIGTERM, mine)
        from orca import XShards
        XShards.partition(np.ones(10), num_shards=2)
        print(signal.getsignal(signal.SIGTERM) is mine)
        """
    )
    assert output == "True\n"


def test_a_rank_may_print_without_end(local: Context):
    line = "x" * 1000
    sizes = local.gang(2).call(say, line, 30_000)
    assert max(sizes) < 10 << 20
    tail = local.gang(2).launcher.tail(0)
    assert tail[-1] == line


def test_a_log_keeps_its_last_lines_and_never_fails(tmp_path: Path):
    path = tmp_path / "rank.log"
    log = RankLog(str(path), max_bytes=100_000)
    for number in range(100_000):
        log.write(f"line {number}\n".encode())
    assert path.stat().st_size < 200_000
    assert path.read_text().splitlines()[-3:] == ["line 99997", "line 99998", "line 99999"]
    RankLog("/dev/full").write(b"dropped\n")


def test_a_full_disk_is_reported_with_the_folder_and_the_size(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ResourceError) as caught:
            write_pieces(str(tmp_path / "shard"), [b"x" * 200_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"There is no room for 200,000 bytes in {tmp_path}" in str(caught.value)
    assert "TMPDIR" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nobody_listens_once_all_ranks_are_in(local: Context):
    before = listening([os.getpid()])
    assert local.gang(2).call(answer, 1) == [1, 1]
    assert listening([os.getpid()]) == before


def test_silent_strangers_do_not_keep_ranks_out():
    admitted = threading.Semaphore(0)
    door = Door("127.0.0.1", lambda hello, connection: admitted.release())
    before = psutil.Process().num_fds()
    strangers = [socket.create_connection((door.meeting.host, door.meeting.port)) for _ in range(300)]
    try:
        connection = connect(door.meeting, lambda address: Hello(0, "h", "h", "a", 1, 0.0, 1))
        assert admitted.acquire(timeout=30)
        connection.close()
        end = time.monotonic() + 20
        while psutil.Process().num_fds() - before - len(strangers) > 70 and time.monotonic() < end:
            time.sleep(0.05)
        assert psutil.Process().num_fds() - before - len(strangers) <= 70
    finally:
        for stranger in strangers:
            stranger.close()
        door.close()


def test_stopping_the_context_while_another_thread_starts_to_work():
    for turn in range(5):
        gang = orca.init_orca_context(cores=2).gang(2)
        assert gang.call(answer, turn) == [turn, turn]
        stopping = threading.Thread(target=orca.stop_orca_context)
        stopping.start()
        while context_module._current is not None:
            time.sleep(0)
        assert orca.init_orca_context(cores=2).gang(2).call(answer, turn) == [turn, turn]
        stopping.join()
    orca.stop_orca_context()
