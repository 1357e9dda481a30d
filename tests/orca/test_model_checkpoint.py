"""ModelCheckpoint keeps the best or the latest epochs."""

from __future__ import annotations

import math

import pytest

from orca.callbacks import ModelCheckpoint
from orca.errors import ArgumentError
from tests.orca.one_weight import losses, saved_and_read, train


def kept_folders(saves):
    """Return the folders that exist after saves and removals, in order."""
    folders = []
    for path, remove in saves:
        folders = [folder for folder in folders if folder not in (path, remove)] + [path]
    return [folder.rpartition("/")[2] for folder in folders]


def test_model_checkpoint_keeps_the_last():
    saving = ModelCheckpoint("runs/")
    run = train([saving], losses(3.0, 1.0, 2.0))
    assert run.saves == [
        ("runs/epoch-0001", None),
        ("runs/epoch-0002", "runs/epoch-0001"),
        ("runs/epoch-0003", "runs/epoch-0002"),
    ]
    assert saving.best_path == "runs/epoch-0003"


@pytest.mark.parametrize(("keep", "epochs"), [(1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])])
def test_model_checkpoint_keeps_the_given_number(keep, epochs):
    run = train([ModelCheckpoint("runs", keep=keep)], losses(3.0, 1.0, 2.0, 4.0))
    assert kept_folders(run.saves) == [f"epoch-{epoch:04d}" for epoch in epochs]


@pytest.mark.parametrize(
    ("monitor", "mode", "keep", "epochs", "best"),
    [
        ("val_loss", "auto", 1, [3], 3),
        ("val_loss", "auto", 2, [3, 5], 3),
        ("val_loss", "max", 1, [4], 4),
        ("val_accuracy", "auto", 2, [1, 4], 4),
        ("val_loss", "auto", None, [1, 2, 3, 4, 5], 3),
    ],
)
def test_model_checkpoint_keeps_the_best(monitor, mode, keep, epochs, best):
    saving = ModelCheckpoint("runs", monitor=monitor, mode=mode, keep=keep)
    run = train([saving], losses(4.0, 3.0, 1.0, 5.0, 2.0, name=monitor))
    assert sorted(kept_folders(run.saves)) == [f"epoch-{epoch:04d}" for epoch in epochs]
    assert saving.best_path == f"runs/epoch-{best:04d}"
    assert saving.best == {3: 1.0, 4: 5.0}[best]


def test_model_checkpoint_does_not_save_what_is_no_better():
    run = train([ModelCheckpoint("runs", monitor="loss")], losses(2.0, 2.0, math.nan, 3.0, name="loss"))
    assert run.saves == [("runs/epoch-0001", None)]


def test_model_checkpoint_resumes_from_a_checkpoint(tmp_path):
    saving = ModelCheckpoint("runs", monitor="val_loss", keep=2)
    train([saving], losses(3.0, 1.0))
    resumed = ModelCheckpoint("runs", monitor="val_loss", keep=2)
    resumed.load_state(saved_and_read(tmp_path, saving.state()))
    run = train([resumed], losses(2.0, 5.0), first=3)
    assert run.saves == [("runs/epoch-0003", "runs/epoch-0001")]
    assert resumed.best_path == "runs/epoch-0002"


def test_model_checkpoint_never_removes_what_it_keeps():
    saving = ModelCheckpoint("runs", monitor="loss", keep=2)
    run = train([saving], losses(9.0, 0.5, name="loss"))
    train([saving], losses(0.4, 0.3, name="loss"), run=run, first=2)
    assert {folder.rpartition("/")[2] for _, folder in saving.saved} == set(kept_folders(run.saves))


def test_model_checkpoint_saves_the_last_epochs_of_another_estimator_too():
    saving = ModelCheckpoint("runs")
    train([saving], losses(1.0, 1.0, 1.0))
    assert kept_folders(train([saving], losses(1.0, 1.0)).saves) == ["epoch-0002"]


def test_model_checkpoint_names_invalid_arguments():
    with pytest.raises(ArgumentError, match=r"monitor='val_loss'.*Give validation_data="):
        train([ModelCheckpoint("runs", monitor="val_loss")], losses(1.0, name="loss"))
    for keep in (0, -1, True, 1.0, "all"):
        with pytest.raises(ArgumentError, match="keep="):
            ModelCheckpoint("runs", keep=keep)
