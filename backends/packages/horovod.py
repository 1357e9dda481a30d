"""Horovod, which several frameworks use; each declares its own binding."""

from __future__ import annotations

from orca.core.packages import Package

FIX = "python tools/build_horovod.py  # in a checkout of Orca"


def binding(framework: str, order: int, first: str = "") -> Package:
    """Declare Horovod's module for a framework, which exists only if Horovod was built with it."""
    name = f"horovod.{framework}"
    built = f"{framework}/mpi_lib*"
    return Package("sync", name, name, FIX, ("horovod",), first=first, built=built, order=order)


PACKAGES = (Package("sync", "horovod", "horovod", FIX, ("horovod",), order=0),)
