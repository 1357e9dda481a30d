"""Find Chromium, in which tests open the pages of the model server, or install it if this user may."""

from __future__ import annotations

import shutil

import apt
from steps import StepFailed, exit_on_failure, say


def ensure_chromium() -> None:
    """Install Chromium if it is missing; without it, tests of the server's pages are skipped."""
    if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return
    try:
        if apt.is_allowed():
            apt.install("Chromium", ["chromium"])
            return
    except StepFailed as failure:
        say(str(failure))
    say(
        "Chromium is not installed: tests of the server's pages are skipped (Debian, Ubuntu: apt-get install chromium)."
    )


if __name__ == "__main__":
    exit_on_failure(ensure_chromium)
