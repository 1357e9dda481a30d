"""Spark's Python daemon, with large packages imported before it forks: a new worker starts with them.

Spark ends Python workers that were idle for a minute; without this each new one imports the framework again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

VARIABLE = "ORCA_PRELOAD"
MODULE = "orca.launch.spark_daemon"


def main() -> None:
    for name in os.environ.get(VARIABLE, "").split(","):
        # A worker that needs the module will say what is wrong with it; others should not fail for it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    from pyspark.daemon import manager

    # Every worker collects garbage after each task. What was imported is no garbage: looking through all of it takes
    # longer than a small task, and makes copies of the memory that forked workers share.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
