"""Saved states survive neighbors, concurrent writers and damage: nothing is lost, and damage is reported by path."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.context import Context
from orca.core.scratch import scratch
from orca.errors import ArgumentError, DataError
from orca.runs import saved_states
from orca.triggers import EveryEpoch

STATE = {"model": {"w": np.arange(6.0).reshape(2, 3)}, "epoch": 3}


def estimator(width: int = 2, **more) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: nn.Linear(3, width),
        optimizer=torch.optim.SGD,
        loss=nn.MSELoss(),
        config={"lr": 0.1},
        seed=1,
        **more,
    )


def rows(width: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, 3)).astype("f4"), rng.normal(size=(20, width)).astype("f4")


def test_files_with_similar_names_stay(tmp_path):
    (tmp_path / "arrays-train.npz").write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="is not a saved estimator"):
        saved_states.save(str(tmp_path), {}, STATE)
    folder = tmp_path / "state"
    saved_states.save(str(folder), {}, STATE)
    (folder / "arrays-2024").mkdir()
    (folder / "arrays-train.npz").write_bytes(b"mine")
    saved_states.save(str(folder), {}, STATE)
    assert (folder / "arrays-train.npz").read_bytes() == b"mine"
    assert (folder / "arrays-2024").is_dir()
    saved_states.remove(str(folder))
    assert sorted(os.listdir(folder)) == ["arrays-2024", "arrays-train.npz"]


def _save_often(path: str, value: float) -> None:
    for _ in range(6):
        saved_states.save(path, {"value": value}, {"w": np.full(1 << 20, value, "f4")})


def test_two_processes_that_save_to_one_path_leave_an_intact_state(tmp_path):
    path = str(tmp_path / "state")
    saved_states.save(path, {"value": 0.0}, {"w": np.zeros(1 << 20, "f4")})
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save_often, args=(path, value)) for value in (1.0, 2.0)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        facts, state = saved_states.load(path)
        np.testing.assert_array_equal(state["w"], np.full(1 << 20, facts["value"], "f4"))
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    facts, state = saved_states.load(path)
    assert facts["value"] in (1.0, 2.0)
    assert reads


@pytest.mark.parametrize("tree", [{"a.b": 1, "a": {"b": 2}}, {"orca.array": "x"}, {1: "one", None: "none"}, (1, [2])])
def test_any_structure_comes_back_as_it_was(tmp_path, tree):
    state = {"tree": tree, "a.b": np.zeros(2), "a": {"b": np.ones(2)}}
    saved_states.save(str(tmp_path / "state"), {}, state)
    loaded = saved_states.load(str(tmp_path / "state"))[1]
    assert loaded["tree"] == tree
    np.testing.assert_array_equal(loaded["a.b"], np.zeros(2))
    np.testing.assert_array_equal(loaded["a"]["b"], np.ones(2))
    with pytest.raises(DataError, match=r"has the key \(1, 2\)"):
        saved_states.save(str(tmp_path / "state"), {}, {(1, 2): 3})


def _manifest(folder: Path, **changes) -> None:
    content = json.loads((folder / "orca.json").read_text()) | changes
    (folder / "orca.json").write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def _arrays(folder: Path) -> Path:
    return next(folder.glob("arrays-*.safetensors"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


DAMAGE = {
    "empty manifest": lambda folder: (folder / "orca.json").write_bytes(b""),
    "half a manifest": lambda folder: (folder / "orca.json").write_bytes((folder / "orca.json").read_bytes()[:40]),
    "binary manifest": lambda folder: (folder / "orca.json").write_bytes(b"\xff\xfe\x00"),
    "list as manifest": lambda folder: (folder / "orca.json").write_text("[1, 2]"),
    "deep manifest": lambda folder: (folder / "orca.json").write_text("[" * 100_000),
    "no arrays named": lambda folder: _manifest(folder, arrays=...),
    "no state": lambda folder: _manifest(folder, state=...),
    "arrays elsewhere": lambda folder: _manifest(folder, arrays="../other.safetensors"),
    "arrays at an absolute path": lambda folder: _manifest(folder, arrays=str(_arrays(folder))),
    "fifo as manifest": lambda folder: _fifo(folder / "orca.json"),
    "fifo as arrays": lambda folder: _fifo(_arrays(folder)),
    "device as manifest": lambda folder: _link(folder / "orca.json", "/dev/zero"),
    "device as arrays": lambda folder: _link(_arrays(folder), "/dev/zero"),
    "newer format": lambda folder: _manifest(folder, format=99),
    "unknown array": lambda folder: _manifest(folder, state={"w": {"orca.array": "77"}}),
    "missing arrays": lambda folder: _arrays(folder).unlink(),
    "empty arrays": lambda folder: _arrays(folder).write_bytes(b""),
    "half the arrays": lambda folder: _arrays(folder).write_bytes(_arrays(folder).read_bytes()[:-8]),
    "flipped bit": lambda folder: _arrays(folder).write_bytes(
        _arrays(folder).read_bytes()[:-1] + bytes([_arrays(folder).read_bytes()[-1] ^ 1])
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_error_that_names_the_path(tmp_path, kind):
    folder = tmp_path / "state"
    saved_states.save(str(folder), {"epoch": 1}, STATE)
    DAMAGE[kind](folder)
    with pytest.raises(DataError, match=f"path='{folder}'"):
        saved_states.load(str(folder))


def test_a_load_that_fails_changes_nothing(local: Context, tmp_path):
    est = estimator()
    est.fit(*rows(), epochs=2, batch_size=10)
    path = est.save(str(tmp_path / "state"))
    before = est.epoch, est.step, est.seed, est.get_state_dict()["weight"].numpy().copy()
    _manifest(Path(path), seed=...)
    with pytest.raises(DataError, match="is damaged: KeyError: 'seed'"):
        est.load(path)
    other = estimator(width=3)
    other.fit(*rows(3), epochs=1, batch_size=10)
    other.save(str(tmp_path / "other"))
    with pytest.raises(DataError, match=r"other' holds the state of another model.*size mismatch"):
        est.load(str(tmp_path / "other"))
    assert (est.epoch, est.step, est.seed) == before[:3]
    np.testing.assert_array_equal(est.get_state_dict()["weight"].numpy(), before[3])


def test_resume_takes_the_newest_intact_checkpoint(local: Context, tmp_path, caplog):
    est = estimator(model_dir=str(tmp_path))
    est.fit(*rows(), epochs=3, batch_size=10, checkpoint_trigger=EveryEpoch())
    newest, middle, _ = sorted(tmp_path.glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))
    (newest / "orca.json").write_bytes(b"")
    _arrays(middle).write_bytes(b"")
    again = estimator(model_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING, "orca"):
        history = again.fit(*rows(), epochs=3, batch_size=10, resume=True)
    assert [record["epoch"] for record in history] == [2, 3]
    assert str(newest) in caplog.text
    assert str(middle) in caplog.text


@pytest.mark.parametrize("folder", ["", "/", "s3://", b"x", 5, ["a"]])
def test_a_model_dir_that_is_no_folder_is_refused_at_once(folder):
    with pytest.raises(ArgumentError, match="model_dir=.*expected the path of a folder"):
        estimator(model_dir=folder)


def test_a_fifo_in_the_temporary_folder_does_not_hang_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = tmp_path / "orca-gang-planted"
    planted.mkdir()
    os.mkfifo(planted / "lock")
    created = scratch("orca-gang-")
    assert created.path.is_dir()
    created.remove()
