"""OpenVINO through the conformance checks, on every runtime."""

from __future__ import annotations

from tests.conformance.openvino_cases import PLAIN, VARIANTS

__all__ = ["PLAIN", "VARIANTS"]


def test_openvino_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.title, runtime=cell.runtime)
