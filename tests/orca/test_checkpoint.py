"""Saved states: any fsspec path, complete or absent, never a pickle."""

from __future__ import annotations

import json
import pickle

import fsspec
import numpy as np
import pytest

from orca.errors import ArgumentError, DataError
from orca.runs import saved_states

STATE = {
    "model": {"weight": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 2), "f4"), "scalar": np.array(3)},
    "optimizer": {"groups": [{"lr": 0.1, "nesterov": False, "betas": None}], "name": "sgd"},
}


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_state_is_restored_from_any_path(tmp_path, scheme):
    path = f"{scheme}{tmp_path}/deep/model" if scheme != "memory://" else "memory://deep/model"
    saved_states.save(path, {"epoch": 3}, STATE)
    saved_states.save(path, {"epoch": 4}, STATE)
    about, state = saved_states.load(path)
    assert about["epoch"] == 4
    np.testing.assert_equal(state, STATE)
    files, target = fsspec.core.url_to_fs(path)
    assert [name.rpartition("/")[2] for name in files.ls(target.rpartition("/")[0], detail=False)] == ["model"]


def test_nothing_in_the_folder_is_a_pickle(tmp_path):
    saved_states.save(str(tmp_path / "model"), {}, STATE)
    for file in (tmp_path / "model").iterdir():
        with pytest.raises(Exception), file.open("rb") as opened:
            pickle.load(opened)
    assert json.loads((tmp_path / "model" / "orca.json").read_text())["format"] == saved_states.FORMAT


def test_failed_save_keeps_the_old_state(tmp_path):
    path = str(tmp_path / "model")
    saved_states.save(path, {"epoch": 1}, STATE)
    with pytest.raises(DataError, match=r"optimizer\.fn is a builtin_function"):
        saved_states.save(path, {"epoch": 2}, {"optimizer": {"fn": len}})
    assert saved_states.load(path)[0]["epoch"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_files_is_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ArgumentError, match="is not a saved estimator"):
        saved_states.save(str(tmp_path / "thesis"), {}, STATE)
    assert (tmp_path / "thesis" / "chapter.txt").exists()
