"""Exhausted limits of the machine are explained: open files, ports, room on the disk."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from orca.errors import ResourceError
from orca.runs import saved_states
from tests.programs import run


def test_too_many_open_files():
    output = run(
        """
        import os, resource
        import numpy as np
        import orca
        from orca import XShards
        shards = XShards.partition(np.zeros((1000, 100)), num_shards=2)
        gang = orca.init_orca_context(cores=2).gang(2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for work in (shards.collect, lambda: gang.call(print)):
            try:
                work()
            except orca.OrcaError as error:
                print(type(error).__name__, error)
        """
    )
    first, second = output.splitlines()
    assert first.startswith("ResourceError This process may not open more than 64 files (Too many open files)")
    assert second == first


def test_no_room_for_a_saved_state(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ResourceError, match="There is no room in .*state"):
            saved_states.save(str(tmp_path / "state"), {}, {"w": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "state").iterdir()) == []
