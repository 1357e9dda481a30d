"""Fuzzes one of Orca's own formats with atheris, which looks for inputs that reach new code."""

from __future__ import annotations

import resource
import sys

import atheris

with atheris.instrument_imports(include=["orca.shards.packing", "orca.launch.channel", "multiprocessing.connection"]):
    from orca.errors import OrcaError
    from tests.fuzzing.formats import FORMATS

MEMORY = 4 << 30


def main() -> None:
    """Run as ``python -m tests.fuzzing.coverage TARGET -runs=N``; exits with an error at the first crash."""
    check = FORMATS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        try:
            check(data)
        except OrcaError:
            pass

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
