"""Drivers that are killed while they write checkpoints lose nothing."""

from __future__ import annotations

import pytest

from orca.context import init_orca_context
from orca.testing.killed_driver import kill_drivers
from tests.conftest import SLOTS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drivers_killed_while_writing_a_checkpoint_lose_nothing(request):
    rounds = 30 if request.config.getoption("--matrix") else 3
    init_orca_context(cores=SLOTS)
    result = kill_drivers(rounds, seed=1)
    print(result)
    assert (result.intact, result.resumed) == (rounds, rounds)
    assert result.in_a_write > 0
