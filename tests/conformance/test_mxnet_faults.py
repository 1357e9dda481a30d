"""Faults in every phase of the MXNet backends, on every runtime."""

from __future__ import annotations

import pytest

pytest.importorskip("mxnet")

from tests.conformance.mxnet_cases import PLAIN

FAULT_CASES = PLAIN
FIRST = None
SAMPLE: list[str] = []


def test_fault_holds(fault_cell, strike):
    strike(fault_cell)
