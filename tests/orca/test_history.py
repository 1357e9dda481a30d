"""History: records, columns, table and plot."""

from __future__ import annotations

import pytest

from orca import History
from orca.errors import ColumnError

RECORDS = [
    {"epoch": 1, "loss": 1.5, "val_loss": 1.25, "lr": 0.1, "rows": 10, "seconds": 0.5, "rows_per_s": 20.0},
    {"epoch": 2, "loss": 0.5, "val_loss": 0.75, "lr": 0.1, "rows": 10, "seconds": 0.5, "rows_per_s": 1234567.0},
]


def test_history_is_indexed_by_number_name_and_slice():
    history = History(RECORDS)
    assert len(history) == 2
    assert list(history) == RECORDS
    assert history[-1]["loss"] == 0.5
    assert history["val_loss"] == [1.25, 0.75]
    assert history[:1] == History(RECORDS[:1])
    with pytest.raises(ColumnError, match=r"no 'val_los'.*Did you mean 'val_loss'"):
        history["val_los"]


def test_history_is_shown_as_a_table():
    history = History(RECORDS)
    assert str(history).splitlines()[0].split()[:3] == ["epoch", "loss", "val_loss"]
    assert "1,234,567" in str(history)
    assert history._repr_html_().count("<tr>") == 3
    assert list(history.to_pandas()["loss"]) == [1.5, 0.5]


def test_history_plots_to_a_file(tmp_path):
    path = tmp_path / "curve.png"
    figure = History(RECORDS).plot(str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [line.get_label() for line in figure.axes[0].lines] == ["train", "validation"]


def test_empty_history_is_harmless():
    assert len(History()) == 0
    assert str(History()) == ""
    assert History().columns == []
