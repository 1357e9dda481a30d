"""read_json, read_parquet and write_parquet on all three engines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orca import XShards
from orca.context import Context
from orca.data import read_json, read_parquet, write_parquet
from orca.errors import ColumnError, DataError
from tests.shards.reader_files import put, same


class TestJson:
    def test_lines_and_arrays(self, context: Context, tmp_path):
        put(
            tmp_path,
            a_json='{"x": 1, "y": "2024-01-01", "z": [1, 2]}\n\n{"x": 2, "y": "2024-01-01T00:00:00Z"}\n',
            b_json='[{"x": 1.5, "y": "b", "z": [3]},\n {"x": null, "y": null}]',
        )
        shards = read_json(tmp_path)
        assert shards.shard_rows() == [2, 2]
        result = shards.to_pandas()
        np.testing.assert_array_equal(result["x"], [1, 2, 1.5, np.nan])
        assert result["y"].tolist()[:3] == ["2024-01-01", "2024-01-01T00:00:00Z", "b"]
        assert list(result["z"].iloc[2]) == [3]
        assert {str(part.dtypes["x"]) for part in shards.collect()} == {"float64"}

    def test_pandas_options(self, local: Context, tmp_path):
        frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
        frame.to_json(tmp_path / "c.json", orient="columns")
        same(read_json(tmp_path / "c.json", lines=False, orient="columns").to_pandas(), frame)
        frame.to_json(tmp_path / "l.json", orient="records", lines=True)
        assert read_json(tmp_path / "l.json", dtype={"x": "float32"}).first().dtypes["x"] == np.float32
        assert read_json(tmp_path / "l.json", num_shards=2).shard_rows() == [1, 1]

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('{"a": 1}\n\n{"a": \n', "bad.json, line 3: not valid json"),
            ('{"a": 1}\n\n{"a": "x"}\n', r"bad.json, line 3: .*changed from number to string"),
            ('[{"a": 1},\n {"a": }]', "bad.json, line 2: not valid json"),
            ('[{"a": 1},\n {"a": "x"}]', "bad.json: column 'a' mixes types"),
            (b'{"a": "b"}\n{"a": "\xff"}\n', "bad.json, line 2: byte 0xff"),
            ("", r"bad.json is empty \(0 bytes\)"),
        ],
    )
    def test_bad_contents_are_named_by_file_and_line(self, local: Context, tmp_path, text, match):
        (tmp_path / "bad.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DataError, match=match):
            read_json(tmp_path)


class TestParquet:
    def test_frames_and_arrays_survive_a_round_trip(self, context: Context, tmp_path):
        frame = pd.DataFrame({"a": np.arange(20), "b": list("abcd") * 5, "c": np.arange(20) / 7})
        path = tmp_path / "frames"
        write_parquet(XShards.from_pandas(frame, 4), path)
        assert sorted(file.name for file in path.iterdir()) == [f"part-0000{index}.parquet" for index in range(4)]
        shards = read_parquet(path)
        assert shards.shard_rows() == [5] * 4
        same(shards.to_pandas(), frame)
        result = read_parquet(f"file://{path}", columns=["c", "a"], filters=[("a", ">", 12)], num_shards=2)
        same(result.to_pandas(), frame[frame["a"] > 12][["c", "a"]])
        write_parquet(XShards.partition({"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}, 2), path)
        assert len(list(path.iterdir())) == 2
        again = read_parquet(path).to_features("x", "y").to_numpy()
        np.testing.assert_array_equal(again["x"], np.arange(6.0).reshape(3, 2))

    def test_folders_named_by_values_become_columns(self, local: Context, tmp_path):
        frame = pd.DataFrame({"a": range(4), "year": [2024, 2024, 2025, 2025]})
        frame.to_parquet(tmp_path / "by", partition_cols=["year"])
        result = read_parquet(tmp_path / "by").to_pandas()
        same(result.astype("int64"), frame)
        assert read_parquet(tmp_path / "by", filters=[("year", "==", 2025)]).to_pandas()["a"].tolist() == [2, 3]

    def test_errors(self, context: Context, tmp_path):
        with pytest.raises(DataError, match="does not exist"):
            read_parquet(tmp_path / "none.parquet")
        pd.DataFrame({"age": [1]}).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(ColumnError, match=r"columns=\['agee'\] is not in a.parquet.*Did you mean 'age'"):
            read_parquet(tmp_path, columns=["agee"])
        with pytest.raises(ColumnError, match=r"filters=\['agee'\] is not in a.parquet"):
            read_parquet(tmp_path, filters=[("agee", "==", 1)])
        (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
        with pytest.raises(DataError, match=r"b.parquet cannot be read"):
            read_parquet(tmp_path)
        pd.DataFrame({"age": ["x"]}).to_parquet(tmp_path / "b.parquet")
        with pytest.raises(DataError, match=r"b.parquet: column 'age' is text, in a.parquet it is int64. Leave"):
            read_parquet(tmp_path)
        with pytest.raises(DataError, match=r"holds other files \(a.parquet, b.parquet\)"):
            write_parquet(XShards.partition({"x": np.arange(3)}), tmp_path)
        failing = XShards.partition({"x": np.arange(3)}, 1).transform_shard(lambda shard: {"x": [object()]})
        with pytest.raises(Exception, match="object"):
            write_parquet(failing, tmp_path / "half")
        assert list((tmp_path / "half").iterdir()) == []
