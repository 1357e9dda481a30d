"""Kinds of data, Orca's own and one of another package, through the conformance checks."""

from __future__ import annotations

from tests.conformance.adapter_cases import ADAPTERS

__all__ = ["ADAPTERS"]


def test_adapter_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.name, runtime=cell.runtime)
