"""Facts about this host: its identity, its cores and its memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def host_id() -> str:
    """Return an id of this host; ranks with the same id can share files and memory."""
    override = os.environ.get("ORCA_HOST_ID")
    if override:
        return override
    boot = Path("/proc/sys/kernel/random/boot_id")
    root = os.stat(os.environ.get("TMPDIR", "/tmp"))
    return f"{os.uname().nodename}/{boot.read_text().strip() if boot.exists() else ''}/{root.st_dev}.{root.st_ino}"


def usable_cpus() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def granted_threads() -> int:
    """Return the number of threads that this process was given by its launcher."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def usable_memory() -> int:
    """Return the bytes this process may use: the memory of the machine, or the limit of its container."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # cgroup v2 or v1; "max" means no limit
            limits.append(int(Path(path).read_text()))
    return min(limits)
