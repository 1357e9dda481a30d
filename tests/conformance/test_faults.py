"""Faults in every phase of the torch backends, and of a model without a framework, on every runtime."""

from __future__ import annotations

from orca.testing.linear import LINEAR_CASE
from tests.conformance.torch_cases import ASYNC, PLAIN, case

FAULT_CASES = [LINEAR_CASE, *PLAIN, case("parameter_server", "async", mode="async", flags=ASYNC)]
FIRST = LINEAR_CASE
SAMPLE = [
    "local-linear.gathered-kill-data",
    "local-linear.gathered-kill-predict",
    "local-linear.gathered-kill-idle",
    "local-linear.gathered-raise-evaluate",
    "local-linear.gathered-slow-fit",
    "local-linear.gathered-pause-fit",
    "local-linear.gathered-two_interrupts-fit",
    "local-linear.gathered-zygote_killed-idle",
    "local-linear.gathered-zygote_killed-start",
    "local-linear.gathered-full_disk-checkpoint",
    "local-linear.gathered-descriptors-checkpoint",
    "local-linear.gathered-ports_taken-idle",
    "local-linear.gathered-driver_killed-fit",
    "local-torch.torch_distributed-kill-start",
    "local-torch.torch_distributed-stop-fit",
    "local-torch.torch_distributed-kill-checkpoint",
    "ray-linear.gathered-kill-fit",
    "ray-linear.gathered-kill-predict",
    "spark-linear.gathered-kill-fit",
    "spark-linear.gathered-kill-data",
]


def test_fault_holds(fault_cell, strike):
    strike(fault_cell)
