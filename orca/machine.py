"""Facts about this host: its identity and its cores."""

from __future__ import annotations

import os
from pathlib import Path


def host_id() -> str:
    """Name this host so that two ranks with the same name can share files and memory."""
    override = os.environ.get("ORCA_HOST_ID")
    if override:
        return override
    boot = Path("/proc/sys/kernel/random/boot_id")
    root = os.stat(os.environ.get("TMPDIR", "/tmp"))
    return f"{os.uname().nodename}/{boot.read_text().strip() if boot.exists() else ''}/{root.st_dev}.{root.st_ino}"


def usable_cpus() -> int:
    """Count the cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
