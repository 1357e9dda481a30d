"""BigDL layers through the conformance checks, on every runtime."""

from __future__ import annotations

from tests.conformance.bigdl_cases import PLAIN, VARIANTS

MAIN = None
"""On clusters the strategies are those of torch, which run all checks there; LeNet and the snippets run there too."""
SLOW = True
__all__ = ["MAIN", "PLAIN", "SLOW", "VARIANTS"]


def test_bigdl_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
