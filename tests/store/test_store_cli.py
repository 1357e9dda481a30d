"""The commands `orca models`, `orca datasets` and `orca token`, run in this process."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from orca.cli import app


@pytest.fixture
def orca(tmp_path, monkeypatch):
    """Run a command in an empty folder; return its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.output.strip()

    return run


def test_models_are_put_listed_aliased_copied_and_dropped(orca, ir, tmp_path):
    assert orca("models", "list", "store", code=2).startswith("ArgumentError: There is no store")
    np.save("rows.npy", np.ones((3, 6), "f4"))
    options = ("--tag", "best", "--example", "rows.npy", "--attribute", "from=test")
    assert orca("models", "put", "store", "net", ir, *options) == "net@1"
    assert orca("models", "put", "store", "net", ir) == "net@2"
    listing = orca("models", "list", "store").splitlines()
    assert listing[0].split() == ["name", "latest", "kind", "created", "aliases"]
    assert listing[1].split()[:3] == ["net", "2", "openvino"]
    assert json.loads(orca("models", "list", "store", "--json"))[0]["aliases"] == {"best": 1}
    facts = json.loads(orca("models", "show", "store", "net@best"))
    assert (facts["version"], facts["versions"], facts["attributes"]) == (1, [1, 2], {"from": "test"})
    assert orca("models", "alias", "store", "net@2", "production") == "production: net@2"
    assert orca("models", "alias", "store", "net", "best", "--remove") == ""
    assert "model.xml" in orca("models", "get", "store", "net@production", "copy")
    assert (tmp_path / "copy" / "model.bin").is_file()
    assert "exists already" in orca("models", "get", "store", "net", "copy", code=2)
    assert "point to what would be dropped" in orca("models", "drop", "store", "net", code=2)
    assert orca("models", "verify", "store") == "All files are as they were stored."
    assert orca("models", "sweep", "store") == "Nothing to remove."
    assert orca("models", "drop", "store", "net@1") == "net@1"
    (tmp_path / "store/models/net/2/model.bin").write_bytes(b"x")
    assert "SHA-256" in orca("models", "verify", "store", code=1)
    assert orca("models", "show", "store", "other", code=2).startswith("NotStoredError: name='other'")


def test_datasets_are_files_in_and_out(orca, tmp_path):
    frame = pd.DataFrame({"x": [1, 2, 3], "name": ["a", "b", "c"]})
    frame.to_csv("rows.csv", index=False)
    assert orca("datasets", "put", "store", "rows", "rows.csv") == "rows: 3 rows"
    assert "append=True" in orca("datasets", "put", "store", "rows", "rows.csv", code=2)
    assert orca("datasets", "put", "store", "rows", "rows.csv", "--append") == "rows: 6 rows"
    assert orca("datasets", "list", "store").splitlines()[1].split()[:3] == ["rows", "pandas", "6"]
    assert json.loads(orca("datasets", "show", "store", "rows"))["columns"]["x"] == "int64"
    orca("datasets", "get", "store", "rows", "out.parquet", "--columns", "name")
    assert list(pd.read_parquet("out.parquet").columns) == ["name"]
    np.save("rows.npy", np.arange(4))
    orca("datasets", "put", "store", "numbers", "rows.npy")
    orca("datasets", "get", "store", "numbers", "out.npy")
    assert np.load("out.npy").tolist() == [0, 1, 2, 3]
    assert "is not a table" in orca("datasets", "get", "store", "numbers", "out.csv", code=1)
    assert "expected one that ends in" in orca("datasets", "put", "store", "x", "rows.pkl", code=2)
    orca("datasets", "drop", "store", "rows")
    assert json.loads(orca("datasets", "list", "store", "--json"))[0]["name"] == "numbers"


def test_tokens_are_added_listed_and_dropped(orca, ir):
    orca("models", "put", "store", "net", ir)
    token = orca("token", "add", "store", "mine", "--pattern", "flowers/*", "--days", "30")
    assert token.startswith("orca_")
    listing = orca("token", "list", "store")
    assert "mine" in listing
    assert token not in listing
    assert orca("token", "drop", "store", "mine") == "1 removed"
    assert "no such token" in orca("token", "drop", "store", "mine", code=2)
