"""MXNet backends through the conformance checks, on every runtime."""

from __future__ import annotations

import pytest

pytest.importorskip("mxnet")

from tests.conformance.mxnet_cases import PLAIN, VARIANTS

SLOW = True
__all__ = ["PLAIN", "SLOW", "VARIANTS"]


def test_mxnet_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
