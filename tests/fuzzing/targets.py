"""What is fuzzed: rows, saved states, the command line and Orca's own formats."""

from __future__ import annotations

import importlib

from tests.fuzzing.reports import Report, fuzz

TARGETS = {
    "rows": "rows",
    "states": "states",
    "commands": "commands",
    "packing": "formats",
    "handshake": "formats",
    "messages": "formats",
    "hello": "formats",
}
"""The targets and their modules, which are imported when they are needed."""


def run(target: str, cases: int, seed: int = 0) -> Report:
    """Fuzz a target in this process."""
    module = importlib.import_module(f"tests.fuzzing.{TARGETS[target]}")
    if TARGETS[target] == "formats":
        return fuzz(target, module.BYTES, module.FORMATS[target], cases, seed)
    with module.target() as check:
        return fuzz(target, module.CASES, check, cases, seed)
