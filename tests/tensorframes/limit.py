"""Puts the process that imports this module, and all that it forks, into a memory control group."""

from __future__ import annotations

import os

with open(os.environ["ORCA_TEST_GROUP"], "w") as group:
    group.write(str(os.getpid()))
