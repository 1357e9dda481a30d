"""Keras backends through the conformance checks, on every runtime."""

from __future__ import annotations

from tests.conformance.keras_cases import PLAIN, VARIANTS

SLOW = True
__all__ = ["PLAIN", "SLOW", "VARIANTS"]


def test_keras_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
