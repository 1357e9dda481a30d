"""Faults in every phase of the Keras backends, on every runtime."""

from __future__ import annotations

from tests.conformance.keras_cases import PLAIN

FAULT_CASES = PLAIN
FIRST = None
SAMPLE: list[str] = []


def test_fault_holds(fault_cell, strike):
    strike(fault_cell)
