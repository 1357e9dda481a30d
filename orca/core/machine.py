"""Facts about this host: its identity, its cores and its memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from pathlib import Path


def host_id() -> str:
    """Return an id of this host; ranks with the same id can share files and memory."""
    override = os.environ.get("ORCA_HOST_ID")
    if override:
        return override
    boot = Path("/proc/sys/kernel/random/boot_id")
    folder = os.environ.get("TMPDIR", "/tmp")
    os.makedirs(folder, exist_ok=True)  # somebody may have removed it
    root = os.stat(folder)
    return f"{os.uname().nodename}/{boot.read_text().strip() if boot.exists() else ''}/{root.st_dev}.{root.st_ino}"


def usable_cpus() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def visible_gpus() -> list[str]:
    """Return the ids of the CUDA devices that this process may use, without initializing CUDA."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        ids = [part.strip() for part in variable.split(",")]
        # CUDA ignores everything after the first id that is not valid.
        return list(itertools.takewhile(lambda part: part not in ("", "-1", "NoDevFiles"), ids))
    numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((number for number in numbers if number.isdecimal()), key=int)


def granted_threads() -> int:
    """Return the number of threads that this process was given by its launcher."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def usable_memory() -> int:
    """Return the bytes this process may use: the memory of the machine, or the limit of its container."""
    import psutil  # here, because it takes longer to import than a context takes to start

    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # cgroup v2 or v1; "max" means no limit
            limits.append(int(Path(path).read_text()))
    return min(limits)


def working_folder() -> str:
    """Return the current folder, or the temporary one if the current one has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return tempfile.gettempdir()


def search_path() -> list[str]:
    """Return the import path of this process, for other processes on the same file system."""
    here = working_folder()
    return [os.path.normpath(os.path.join(here, entry)) for entry in sys.path]


def on_terminal() -> bool:
    """Whether standard error is a terminal; a daemon may have closed it."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False
