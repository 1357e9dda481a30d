"""Datasets of a store: every kind comes back as it was put, with columns, filters, append and replace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orca import Store, XShards
from orca.errors import ArgumentError, ColumnError, DataError, NotStoredError, UntrustedError
from orca.store import virtualobj

FRAME = pd.DataFrame(
    {"x": np.arange(10), "name": [f"row {number}" for number in range(10)], "part": [1.5, None] * 5},
    index=pd.Index(range(100, 110), name="key"),
)


def test_frames_and_tables_come_back_equal(om):
    om.datasets.put(FRAME, "frame")
    pd.testing.assert_frame_equal(om.datasets.get("frame"), FRAME)
    table = pa.table({"a": [1, 2], "b": [[1.0], [2.0, 3.0]]})
    om.datasets.put(table, "table")
    assert om.datasets.get("table").equals(table)
    assert om.datasets.get("table", as_="pandas")["a"].tolist() == [1, 2]
    assert om.datasets.get("frame", as_="numpy")["x"].tolist() == list(range(10))
    assert om.datasets.metadata("frame")["rows"] == 10


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ({"x": 3}, [3]),
        ({"x__eq": 3}, [3]),
        ({"x__ne": 3, "x__lt": 5}, [0, 1, 2, 4]),
        ({"x__gt": 7}, [8, 9]),
        ({"x__gte": 8, "x__lte": 8}, [8]),
        ({"x__between": (2, 4)}, [2, 3, 4]),
        ({"x__in": [1, 9, 77]}, [1, 9]),
        ({"name__contains": "w 4"}, [4]),
        ({"name__startswith": "row", "name__endswith": " 5"}, [5]),
        ({"part__isnull": True, "x__lt": 4}, [1, 3]),
        ({"part__isnull": False, "x__lt": 4}, [0, 2]),
    ],
)
def test_filters_choose_rows_as_pandas_would(tmp_path_factory, filters, rows):
    om = Store(tmp_path_factory.getbasetemp() / "filters")
    if not om.datasets.exists("frame"):
        om.datasets.put(FRAME, "frame")
    frame = om.datasets.get("frame", columns=["x"], **filters)
    assert frame["x"].tolist() == rows
    assert frame.index.tolist() == [100 + row for row in rows]


def test_a_filter_reads_only_the_row_groups_that_may_match(om):
    rows = 400_000
    om.datasets.put(pd.DataFrame({"x": np.arange(rows), "y": np.zeros(rows)}), "long")
    path = om._files.root / om.datasets._rows()[0].manifest["parts"][0]["file"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # a page in the middle
    path.write_bytes(content)
    assert len(om.datasets.get("long", x__lt=10)) == 10
    with pytest.raises(DataError, match=r"damaged"):
        om.datasets.get("long")
    assert "long" in om.verify()[0]


def test_wrong_columns_and_filters_name_what_exists(om):
    om.datasets.put(FRAME, "frame")
    with pytest.raises(ColumnError, match=r"columns=\['nam'\].*Did you mean 'name'"):
        om.datasets.get("frame", columns=["nam"])
    with pytest.raises(ColumnError, match=r"y=3: 'y' is not a column. Columns: x, name, part"):
        om.datasets.get("frame", y=3)
    with pytest.raises(ArgumentError, match=r"x__greater=: 'greater' is not an operator"):
        om.datasets.get("frame", x__greater=3)
    with pytest.raises(ArgumentError, match=r"x__between=3: expected a pair"):
        om.datasets.get("frame", x__between=3)
    with pytest.raises(ArgumentError, match=r"do not fit the columns"):
        om.datasets.get("frame", x__gt="three")
    with pytest.raises(ArgumentError, match=r'as_=\'tf.data\': a dataset of pandas is read as "pandas"'):
        om.datasets.get("frame", as_="tf.data")
    with pytest.raises(NotStoredError, match=r"Did you mean 'frame'"):
        om.datasets.get("fram")


def test_arrays_keep_their_structure_and_types(om):
    tree = {"x": np.arange(6, dtype="u1").reshape(3, 2), "y": (np.ones(3, "?"), [np.array(["a", "bc", ""])])}
    om.datasets.put(tree, "tree")
    om.datasets.put(tree, "tree", append=True)
    back = om.datasets.get("tree")
    assert back["x"].dtype == np.uint8
    assert isinstance(back["y"], tuple)
    assert isinstance(back["y"][1], list)
    assert back["y"][1][0].tolist() == ["a", "bc", ""] * 2
    assert list(om.datasets.get("tree", columns=["x"])) == ["x"]
    with pytest.raises(DataError, match=r"do not fit the dataset 'tree'"):
        om.datasets.put({"x": np.zeros((3, 2))}, "tree", append=True)
    with pytest.raises(DataError, match=r"cannot be stored without pickling"):
        om.datasets.put(np.array([object()]), "objects")
    assert om.sweep() == []


def test_json_values_come_back_and_lists_grow(om):
    values = {"a": [1, 2.5, None, True, "ü"], "b": {"c": []}}
    om.datasets.put(values, "settings")
    assert om.datasets.get("settings") == values
    om.datasets.put([1, 2], "list")
    om.datasets.put([3], "list", append=True)
    assert om.datasets.get("list") == [1, 2, 3]
    with pytest.raises(DataError, match=r"nothing can be appended"):
        om.datasets.put(values, "settings", append=True)
    with pytest.raises(DataError, match=r"neither arrays nor JSON"):
        om.datasets.put({"a": {1, 2}}, "set")
    with pytest.raises(ArgumentError, match=r"@virtualobj"):
        om.datasets.put(len, "function")


def test_an_existing_name_needs_append_or_replace(om):
    om.datasets.put(FRAME, "frame")
    with pytest.raises(ArgumentError, match=r"'frame' exists already: pass append=True"):
        om.datasets.put(FRAME, "frame")
    om.datasets.put(FRAME, "frame", append=True)
    assert len(om.datasets.get("frame")) == 20
    with pytest.raises(DataError, match=r"the columns part are in one only"):
        om.datasets.put(FRAME[["x", "name"]], "frame", append=True)
    om.datasets.put(FRAME[["x"]], "frame", replace=True, attributes={"from": "test"})
    assert list(om.datasets.get("frame").columns) == ["x"]
    assert om.datasets.metadata("frame")["attributes"] == {"from": "test"}
    assert om.verify() == om.sweep() == []
    om.datasets.drop("frame")
    assert om.datasets.list() == om._files.walk("datasets") == []


def test_shards_are_written_and_read_where_they_are(om, context):
    arrays = XShards.partition({"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}, num_shards=3)
    om.datasets.put(arrays, "arrays")
    back = om.datasets.get("arrays")
    assert (back.engine.name, back.num_partitions()) == (context.runtime, 3)
    np.testing.assert_array_equal(back.to_numpy()["x"], np.arange(12.0).reshape(6, 2))
    om.datasets.put(XShards.partition(FRAME.reset_index(), num_shards=2), "frames")
    assert sorted(om.datasets.get("frames", x__gt=6).to_pandas()["x"]) == [7, 8, 9]
    assert len(om.datasets.get("frames", as_="pandas")) == 10
    assert om.verify() == om.sweep() == []


def test_a_virtual_dataset_runs_with_its_options(om):
    @virtualobj
    def numbers(count="3", method=None, store=None, meta=None):
        return list(range(int(count))), method, store.datasets.exists("numbers"), meta["name"]

    om.datasets.put(numbers, "numbers")
    assert om.datasets.get("numbers") == ([0, 1, 2], "get", True, "numbers")
    assert om.datasets.get("numbers{count=2}")[0] == [0, 1]
    assert om.datasets.get("numbers", count=1)[0] == [0]
    assert "def numbers" in om.datasets.metadata("numbers")["source"]
    with pytest.raises(DataError, match=r"other=: the virtual dataset has the parameters count"):
        om.datasets.get("numbers{other=2}")
    with pytest.raises(ArgumentError, match=r"only virtual datasets take options"):
        om.datasets.put([1], "list")
        om.datasets.get("list{a=b}")


def test_a_virtual_dataset_of_another_user_does_not_run(om, own_key, tmp_path, monkeypatch):
    mark = tmp_path / "ran"

    @virtualobj
    def touching():
        mark.touch()
        return 1

    om.datasets.put(touching, "touching")
    assert own_key.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("ORCA_KEY_FILE", str(tmp_path / "other" / "key"))
    with pytest.raises(UntrustedError, match=r"your key .* has not signed"):
        om.datasets.get("touching")
    assert not mark.exists()
    assert om.datasets.get("touching", trusted=True) == 1
    assert mark.exists()
    monkeypatch.setenv("ORCA_KEY_FILE", str(own_key))
    own_key.chmod(0o644)
    with pytest.raises(DataError, match=r"can be read by other users. Run: chmod 600"):
        om.datasets.get("touching")


def test_a_signed_function_cannot_be_moved_to_another_name(om, tmp_path):
    mark = tmp_path / "ran"

    @virtualobj
    def touching():
        mark.touch()

    om.datasets.put(touching, "one")
    om.datasets.put(virtualobj(lambda: 1), "two")
    one, two = (om._files.root / row.manifest["parts"][0]["file"] for row in om.datasets._rows())
    from sqlalchemy import update

    from orca.store import tables

    with om._database.writing() as connection:
        manifest = connection.exec_driver_sql("SELECT manifest FROM orca_datasets WHERE name = 'one'").scalar_one()
        connection.execute(update(tables.datasets).where(tables.datasets.c.name == "two").values(manifest=manifest))
    with pytest.raises(UntrustedError, match=r"was signed for the dataset 'one'"):
        om.datasets.get("two")
    assert not mark.exists()
    assert one.exists()
    assert om.sweep() == [two.relative_to(om.path).as_posix()]
