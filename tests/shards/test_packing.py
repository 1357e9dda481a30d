"""Packed shards: any object survives a round trip, large buffers are aligned and shared, files are removed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orca.core.scratch import scratch
from orca.shards import store
from orca.shards.packing import pack, read_file, unpack, write_file

ARRAYS = hnp.arrays(
    dtype=st.sampled_from(["f4", "f8", "i8", "u1", "?", "U3", "M8[s]"]),
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40),
)
TREES = st.recursive(
    ARRAYS | st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_any_tree_survives_a_round_trip(tree):
    np.testing.assert_equal(unpack(pack(tree)), tree)


def test_file_is_mapped_aligned_and_private(tmp_path):
    shard = {"x": np.arange(100_000, dtype="f4").reshape(1000, 100), "y": np.arange(2000)}
    path = str(tmp_path / "one.shard")
    size = write_file(path, shard)
    assert size < shard["x"].nbytes + shard["y"].nbytes + 2000
    back = read_file(path)
    for name in shard:
        np.testing.assert_array_equal(back[name], shard[name])
        assert back[name].ctypes.data % 64 == 0
        assert not back[name].flags.owndata
    back["x"][:] = -1
    np.testing.assert_array_equal(read_file(path)["x"], shard["x"])


def test_damaged_file_is_refused(tmp_path):
    path = tmp_path / "bad.shard"
    path.write_bytes(b"not a shard at all, but long enough")
    with pytest.raises(ValueError, match="not a shard"):
        read_file(str(path))


def test_shard_file_is_removed_with_its_last_reference():
    shard = store.keep({"x": np.zeros(5000)})
    path = shard.path
    data = shard.load()["x"]
    assert os.path.exists(path)
    del shard
    gc.collect()
    assert not os.path.exists(path)
    assert data.sum() == 0


def test_folder_of_a_killed_process_is_swept_by_the_next():
    code = (
        "import os, signal, numpy as np; from orca.shards import store; "
        "print(store.keep(np.zeros(10)).path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    folder = Path(process.stdout.strip()).parent
    # The file was removed with its last reference, before the kill; the folder was not.
    assert folder.exists()
    scratch("orca-shards-").remove()
    assert not folder.exists()
