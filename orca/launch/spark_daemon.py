"""Spark's Python daemon, with large packages imported before it forks: a new worker starts with them.

Spark ends Python workers that were idle for a minute; without this each new one imports the framework again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys

VARIABLE = "ORCA_PRELOAD"
MODULE = "orca.launch.spark_daemon"


def drop_archives() -> None:
    """Import an installed PySpark from its folder and not from the zip file inside of it that Spark puts before it.

    Every task reads all zip files on the path again, which takes longer than a small task.
    """
    archives = [entry for entry in sys.path if entry.endswith(".zip")]
    kept = list(sys.path)
    sys.path[:] = [entry for entry in kept if entry not in archives]
    package = importlib.util.find_spec("pyspark")
    home = os.path.dirname(package.origin) + os.sep if package is not None and package.origin is not None else None
    sys.path[:] = [entry for entry in kept if entry not in archives or home is None or not entry.startswith(home)]
    for entry in set(kept) - set(sys.path):
        sys.path_importer_cache.pop(entry, None)


def main() -> None:
    drop_archives()
    for name in os.environ.get(VARIABLE, "").split(","):
        # A worker that needs the module reports what is wrong with it; others should not fail.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    from pyspark.daemon import manager

    # Every worker collects garbage after each task. Scanning all imported modules takes longer than a small task and
    # copies memory that forked workers share.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
