"""Find iproute2, with which tests make hosts out of network namespaces, or install it if this user may."""

from __future__ import annotations

import shutil

import apt
from steps import StepFailed, exit_on_failure, say


def ensure_iproute2() -> None:
    """Install iproute2 if it is missing; without it, tests on several hosts are skipped."""
    if shutil.which("ip") is not None:
        return
    try:
        if apt.is_allowed():
            apt.install("iproute2", ["iproute2"])
            return
    except StepFailed as failure:
        say(str(failure))
    say("iproute2 is not installed: tests on several hosts are skipped (Debian, Ubuntu: apt-get install iproute2).")


if __name__ == "__main__":
    exit_on_failure(ensure_iproute2)
