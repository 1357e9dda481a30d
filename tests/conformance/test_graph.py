"""Backends of TensorFlow graphs through the conformance checks, on every runtime."""

from __future__ import annotations

from tests.conformance.graph_cases import PLAIN, VARIANTS

SLOW = True
__all__ = ["PLAIN", "SLOW", "VARIANTS"]


def test_graphs_conform(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
