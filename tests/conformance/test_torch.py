"""Torch backends through the conformance checks, on every runtime."""

from __future__ import annotations

from tests.conformance.torch_cases import PLAIN, VARIANTS

__all__ = ["PLAIN", "VARIANTS"]


def test_torch_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
