"""Readers: every format on all three engines, options against plain pandas, and errors that name file and line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orca import XShards
from orca.context import Context
from orca.data import (
    read_csv,
    read_image_folder,
    read_images,
    read_json,
    read_parquet,
    read_tfrecord,
    write_parquet,
    write_tfrecord,
)
from orca.errors import ArgumentError, ColumnError, DataError, MissingPackageError
from orca.shards.readers import csv_files
from orca.shards.readers.paths import contents, listing


def put(folder: Path, **texts: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name.replace("_", ".", 1)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def ten_files(folder: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = []
    for number in range(10):
        frames.append(
            pd.DataFrame(
                {
                    "row": np.arange(number * 100, number * 100 + 100),
                    "value": rng.normal(size=100).round(4),
                    "name": rng.choice(["ann", 'b "x" b', "c,d"], 100),
                    "gap": np.where(rng.random(100) < 0.2, np.nan, rng.normal(size=100).round(3)),
                }
            )
        )
        frames[-1].to_csv(folder / f"part-{number}.csv", index=False)
    return pd.concat(frames, ignore_index=True)


def same(found, expected):
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))


class TestCsvOnEveryEngine:
    def test_ten_files_keep_all_rows_in_order(self, context: Context, tmp_path):
        data = ten_files(tmp_path)
        (tmp_path / "_SUCCESS").touch()
        (tmp_path / ".hidden.csv").write_text("nonsense\n")
        shards = read_csv(tmp_path)
        assert shards.engine.name == context.runtime
        assert shards.shard_rows() == [100] * 10
        same(shards.to_pandas(), data)
        for paths in (f"{tmp_path}/part-*.csv", f"file://{tmp_path}/part-*.csv", f"file://{tmp_path}"):
            grouped = read_csv(paths, num_shards=3)
            assert grouped.num_partitions() == 3
            same(grouped.to_pandas(), data)

    def test_types_are_made_alike(self, context: Context, tmp_path):
        put(
            tmp_path,
            a_csv="n,text,flag,none\n1,x,True,\n2,y,False,\n",
            b_csv="n,text,flag,none\n1.5,,,\n",
            c_csv="none,flag,text,n\n",
        )
        shards = read_csv(tmp_path)
        assert shards.shard_rows() == [2, 1, 0]
        found = shards.collect()
        assert [list(part.columns) for part in found] == [["n", "text", "flag", "none"]] * 3
        assert len({tuple(map(str, part.dtypes)) for part in found}) == 1
        assert found[0].dtypes["n"] == found[0].dtypes["none"] == np.float64
        assert found[1]["text"].isna().all()
        put(tmp_path / "two", a_csv="age\n1\n", b_csv="age\nold\n")
        with pytest.raises(
            DataError, match=r"^b.csv: column 'age' is text, in a.csv it is int64. Give dtype=\{'age': ...\}.$"
        ):
            read_csv(tmp_path / "two")
        with pytest.raises(DataError, match=r"b.csv: column 'age' is text, in a.csv it is int64"):
            read_csv(tmp_path / "two", num_shards=1)
        assert read_csv(tmp_path / "two", dtype={"age": str}).to_pandas()["age"].tolist() == ["1", "old"]

    def test_a_cut_file_equals_pandas(self, context: Context, tmp_path, monkeypatch):
        monkeypatch.setattr(csv_files, "CUT_BYTES", 1000)
        rng = np.random.default_rng(1)
        frame = pd.DataFrame({"a": np.arange(997), "b": rng.normal(size=997), "c": rng.choice(["x", "yy", ""], 997)})
        path = tmp_path / "large.csv"
        frame.to_csv(path, index=False)
        shards = read_csv(path)
        assert shards.num_partitions() == context.cores
        assert min(shards.shard_rows()) > 100
        same(shards.to_pandas(), pd.read_csv(path))
        seven = read_csv(path, num_shards=7)
        assert seven.num_partitions() == 7
        same(seven.to_pandas(), pd.read_csv(path))

    @pytest.mark.slow
    def test_a_malformed_row_is_named_by_file_and_line(self, context: Context, tmp_path):
        for number in range(1000):
            (tmp_path / f"f{number:03d}.csv").write_text(
                "a,b\n1,2\n\n3,4\n" + ("5,6,7\n" if number == 617 else "5,6\n")
            )
        with pytest.raises(DataError, match=r"f617.csv, line 5: expected 2 fields, found 3: '5,6,7'"):
            read_csv(tmp_path, num_shards=16)
        if context.runtime == "local":
            with pytest.raises(DataError, match=r"f617.csv, line 5: expected 2 fields, found 3"):
                read_csv(tmp_path)
            (tmp_path / "f617.csv").write_text("a,b\n1,2\n")
            assert len(read_csv(tmp_path)) == 999 * 3 + 1


OPTIONS = [
    {},
    {"usecols": ["value", "row"]},
    {"usecols": [0, 2]},
    {"usecols": lambda name: name != "gap"},
    {"dtype": {"row": "float32", "name": str}},
    {"dtype": {"row": str}},
    {"dtype": "str"},
    {"dtype": {"row": "int16"}, "usecols": ["row"]},
    {"names": ["p", "q", "r", "s"], "header": 0},
    {"names": ["p", "q", "r", "s"], "skiprows": 1},
    {"index_col": "row"},
    {"index_col": 0},
    {"index_col": ["name", "row"]},
    {"na_values": ["ann"]},
    {"dtype": {"row": "Int64", "name": "category"}},
    {"keep_default_na": False, "dtype": str},
    {"nrows": 5},
    {"engine": "python"},
]


class TestCsvOptions:
    @pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
    def test_options_are_those_of_pandas(self, local: Context, tmp_path, options):
        ten_files(tmp_path)
        names = sorted(tmp_path.iterdir())[:2]
        for path in names:
            expected = pd.read_csv(path, **options)
            pd.testing.assert_frame_equal(read_csv(path, **options).first(), expected)
        both = read_csv(names, **options).to_pandas()
        plain = "index_col" not in options
        expected = pd.concat([pd.read_csv(path, **options) for path in names], ignore_index=plain)
        pd.testing.assert_frame_equal(both, expected, check_categorical=False)

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("1;2\n3;4\n", {"sep": ";", "header": None}),
            ("1\t2\n3\t4\n", {"sep": "\t", "names": ["a", "b"]}),
            ("\ufeffa,b\n1,2\n", {}),
            ("\n\na,b\r\n1,2\r\n\r\n3,4", {}),
            ('"a\nb",c\n1,"x\ny"\n2,"say ""hi"""\n', {}),
            ("a,a,,b\n1,2,3,4\n", {}),
            ("day,time,stamp,n\n2024-01-02,12:30,2024-01-02 10:00:00,1\n2024-01-03,12:31,2024-01-03T10:00:00Z,2\n", {}),
            ("day,n\n2024-01-02,1\n,2\n", {"parse_dates": ["day"]}),
            ("day,n\n02/01/2024,1\n13/01/2024,2\n", {"parse_dates": ["day"], "date_format": "%d/%m/%Y"}),
            ("day,n\n02/01/2024,1\n13/01/2024,2\n", {"parse_dates": [0], "dayfirst": True}),
            ("day,n\n20240102,1\n", {"parse_dates": ["day"], "index_col": "day"}),
            ("day,n\n2024-01-02,1\n", {"parse_dates": True, "index_col": "day"}),
            ("a\n18446744073709551615\n1\n", {}),
            ("a,b\ntrue,1\nFALSE,true\n", {}),
            ("a,b\nTrue,None\n,<NA>\n", {}),
            ("a,b\n'x,y',2\n", {"quotechar": "'"}),
            ("a,b\n1.5,2  \n -3, 4\n", {}),
            ('a,b\n5" pipe,1\nx,2\n', {}),
            ("# no\na,b\n1,2\n", {"comment": "#"}),
            ("a,b\n1,2\n1,2,3\n4,5\n", {"on_bad_lines": "skip"}),
            ("a b\n1 2\n", {"sep": r"\s+"}),
            ("a,b\n1,5\n,x\n", {}),
        ],
    )
    def test_odd_files_are_read_as_pandas_reads_them(self, local: Context, tmp_path, text, options):
        path = tmp_path / "odd.csv"
        path.write_bytes(text.encode())
        pd.testing.assert_frame_equal(read_csv(path, **options).first(), pd.read_csv(path, **options))

    def test_compressed_files_and_encodings(self, local: Context, tmp_path):
        frame = pd.DataFrame({"a": [1, 2], "b": ["ä", "ö"]})
        for name in ("a.csv.gz", "b.csv.bz2", "c.csv.zip", "d.csv"):
            frame.to_csv(tmp_path / name, index=False)
        same(read_csv(tmp_path).to_pandas(), pd.concat([frame] * 4))
        same(read_csv(tmp_path / "a.csv.gz", num_shards=2).to_pandas(), frame)
        frame.to_csv(tmp_path / "d.csv", index=False, encoding="latin-1")
        same(read_csv(tmp_path / "d.csv", encoding="latin-1").to_pandas(), frame)
        (tmp_path / "d.csv").unlink()
        (tmp_path / "a.csv.gz").write_bytes((tmp_path / "a.csv.gz").read_bytes()[:-12])
        with pytest.raises(DataError, match=r"a.csv.gz cannot be read: EOFError"):
            read_csv(tmp_path)

    def test_ranges_that_disagree_become_text_as_in_the_whole_file(self, local: Context, tmp_path):
        path = tmp_path / "mixed.csv"
        path.write_text("id,n\n" + "007,1\n" * 50 + "x1,2\n" * 50 + "1.50,\n" * 50)
        found = read_csv(path, num_shards=5)
        assert found.num_partitions() == 5
        same(found.to_pandas(), pd.read_csv(path))
        assert found.to_pandas()["id"].iloc[0] == "007"

    def test_a_file_with_quotes_stays_whole(self, local: Context, tmp_path):
        path = tmp_path / "quoted.csv"
        path.write_text("a,b\n" + '1,"x\ny"\n' * 100)
        assert len(csv_files.cut(listing(path)[0], csv_files.checked(*[None] * 5, "infer", ",", {}), 4)) == 1
        found = read_csv(path, num_shards=4)
        assert found.shard_rows() == [25] * 4
        same(found.to_pandas(), pd.read_csv(path))

    def test_large_whole_numbers_are_never_rounded(self, local: Context, tmp_path):
        (tmp_path / "long.csv").write_text("id\n99999999999999999999\n1\n")
        assert read_csv(tmp_path / "long.csv").first()["id"].tolist() == ["99999999999999999999", "1"]
        (tmp_path / "long.csv").unlink()
        put(tmp_path, a_csv=f"id\n{2**53 + 1}\n", b_csv="id\n1.5\n")
        with pytest.raises(DataError, match=r"a.csv: column 'id' has whole numbers that are too large"):
            read_csv(tmp_path)


class TestCsvErrors:
    def fails(self, error, match, folder, **options):
        with pytest.raises(error, match=match):
            read_csv(folder, **options)

    def test_paths_that_hold_nothing(self, context: Context, tmp_path):
        self.fails(DataError, "nothing.csv' does not exist", tmp_path / "nothing.csv")
        self.fails(DataError, r"\*.csv' matches no file", f"{tmp_path}/*.csv")
        self.fails(DataError, "holds no data file", tmp_path)
        self.fails(ArgumentError, "empty list", [])
        put(tmp_path, a_csv="a\n1\n", b_csv="")
        self.fails(DataError, r"b.csv is empty \(0 bytes\)", tmp_path)
        self.fails(DataError, r"b.csv is empty \(0 bytes\)", tmp_path, na_values=["x"])
        (tmp_path / "b.csv").write_text("\n\n")
        self.fails(DataError, "b.csv has no line with data", tmp_path)

    def test_columns(self, context: Context, tmp_path):
        put(tmp_path, a_csv="name,age\nx,1\n", b_csv="name,agee\ny,2\n")
        self.fails(DataError, "b.csv has no column 'age', which a.csv has. Did you mean 'agee'", tmp_path)
        self.fails(
            ColumnError, r"usecols=\['nmae'\] is not in [ab].csv.*Did you mean 'name'", tmp_path, usecols=["nmae"]
        )
        slow = {"usecols": ["nmae"], "na_values": ["-"]}
        self.fails(ColumnError, r"usecols=\['nmae'\] is not in [ab].csv.*Did you mean 'name'", tmp_path, **slow)
        self.fails(ColumnError, r"dtype=\['nmae'\]", tmp_path, dtype={"nmae": str})
        self.fails(ArgumentError, "no option na_value= here. Did you mean 'na_values'", tmp_path, na_value="x")
        self.fails(ArgumentError, "no option chunksize=", tmp_path, chunksize=5)

    @pytest.mark.parametrize(
        ("text", "match", "options"),
        [
            ("a,b\n1,2\n3\n", "bad.csv, line 3: expected 2 fields, found 1: '3'", {}),
            ('a,b\n1,"x\ny"\n3,4,5\n', "bad.csv, line 4: expected 2 fields, found 3", {}),
            ("a,b\n1,2\n3,4,5\n", "bad.csv, line 3: expected 2 fields, found 3", {"na_values": ["x"]}),
            ("a,b\n0,1,2\n1,2,3\n", "bad.csv, line 2: expected 2 fields, found 3", {}),
            ("a,b\n0,1,2\n1,2,3\n", "bad.csv: the rows have more fields than there are names", {"na_values": ["x"]}),
            ('a,b\n1,2\n3,"x\n4,5\n6,7\n', r"bad.csv, line 3: a quote \(\"\) is opened here and never closed", {}),
            ('a,b\n1,2\n3,"x\n4,5\n', r"bad.csv, line 3: a quote .* never closed", {"na_values": ["-"]}),
            (b"a,b\n1,x\n2,\xff\n", "bad.csv, line 3: byte 0xff cannot be read as utf-8.*encoding=", {}),
            (b"a,b\n1,x\n2,\xff\n", "bad.csv, line 3: byte 0xff cannot be read as utf-8", {"dtype": {"b": str}}),
            (b"a,b\n1,x\n2,\xff\n", "bad.csv, line 3: byte 0xff cannot be read as utf-8", {"na_values": ["-"]}),
            (b"a,\xff\n1,x\n", "bad.csv, line 1: byte 0xff", {}),
            ("a,b\n1,2\nx,4\n", "bad.csv, line 3: column 'a' has 'x', which is not int64", {"dtype": {"a": "int64"}}),
            (
                "a,b\n1,2\n,4\n",
                "bad.csv, line 3: column 'a' is empty here, so it cannot be int64",
                {"dtype": {"a": int}},
            ),
            ("a,d\n1,2024-01-01\n2,soon\n", "line 3: column 'd' has 'soon', which is no date", {"parse_dates": ["d"]}),
            ("d\n01/02/2024\n", "day and month can be mixed up. Give date_format=", {"parse_dates": ["d"]}),
        ],
    )
    def test_bad_contents_are_named_by_file_and_line(self, local: Context, tmp_path, text, match, options):
        (tmp_path / "bad.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        self.fails(DataError, match, tmp_path / "bad.csv", **options)

    def test_lines_are_counted_from_the_files_beginning_when_it_is_cut(self, context: Context, tmp_path):
        path = tmp_path / "cut.csv"
        path.write_text("a,b\n" + "1,2\n" * 800 + "3\n" + "1,2\n" * 198)
        self.fails(DataError, "cut.csv, line 802: expected 2 fields, found 1", path, num_shards=4)
        path.write_text("a,b\n" + "1,2\n" * 800 + "x,2\n" + "1,2\n" * 198)
        self.fails(DataError, "cut.csv, line 802: column 'a' has 'x'", path, num_shards=4, dtype={"a": int})

    def test_equal_names_in_two_folders_are_told_apart(self, local: Context, tmp_path):
        put(tmp_path / "one", a_csv="a\n1\n")
        put(tmp_path / "two", a_csv="a\nx\n")
        self.fails(DataError, "two/a.csv: column 'a' is text, in .*one/a.csv it is int64", tmp_path)


def test_memory_urls_are_listed_and_read(local: Context):
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe({"/readers/b.csv": b"a\n2\n", "/readers/a.csv": b"a\n1\n", "/readers/_SUCCESS": b""})
    found = listing("memory://readers")
    assert [(file.url, file.label, file.size) for file in found] == [
        ("memory:///readers/a.csv", "a.csv", 4),
        ("memory:///readers/b.csv", "b.csv", 4),
    ]
    assert [contents(file) for file in listing("memory://readers/*.csv")] == [b"a\n1\n", b"a\n2\n"]


class TestJson:
    def test_lines_and_arrays(self, context: Context, tmp_path):
        put(
            tmp_path,
            a_json='{"x": 1, "y": "2024-01-01", "z": [1, 2]}\n\n{"x": 2, "y": "2024-01-01T00:00:00Z"}\n',
            b_json='[{"x": 1.5, "y": "b", "z": [3]},\n {"x": null, "y": null}]',
        )
        shards = read_json(tmp_path)
        assert shards.shard_rows() == [2, 2]
        found = shards.to_pandas()
        np.testing.assert_array_equal(found["x"], [1, 2, 1.5, np.nan])
        assert found["y"].tolist()[:3] == ["2024-01-01", "2024-01-01T00:00:00Z", "b"]
        assert list(found["z"].iloc[2]) == [3]
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
            ('{"a": 1}\n\n{"a": \n', "bad.json, line 3: this is no json"),
            ('{"a": 1}\n\n{"a": "x"}\n', r"bad.json, line 3: .*changed from number to string"),
            ('[{"a": 1},\n {"a": }]', "bad.json, line 2: this is no json"),
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
    def test_frames_and_arrays_come_back(self, context: Context, tmp_path):
        frame = pd.DataFrame({"a": np.arange(20), "b": list("abcd") * 5, "c": np.arange(20) / 7})
        path = tmp_path / "frames"
        write_parquet(XShards.from_pandas(frame, 4), path)
        assert sorted(file.name for file in path.iterdir()) == [f"part-0000{index}.parquet" for index in range(4)]
        shards = read_parquet(path)
        assert shards.shard_rows() == [5] * 4
        same(shards.to_pandas(), frame)
        found = read_parquet(f"file://{path}", columns=["c", "a"], filters=[("a", ">", 12)], num_shards=2)
        same(found.to_pandas(), frame[frame["a"] > 12][["c", "a"]])
        write_parquet(XShards.partition({"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}, 2), path)
        assert len(list(path.iterdir())) == 2
        again = read_parquet(path).to_features("x", "y").to_numpy()
        np.testing.assert_array_equal(again["x"], np.arange(6.0).reshape(3, 2))

    def test_folders_named_by_values_become_columns(self, local: Context, tmp_path):
        frame = pd.DataFrame({"a": range(4), "year": [2024, 2024, 2025, 2025]})
        frame.to_parquet(tmp_path / "by", partition_cols=["year"])
        found = read_parquet(tmp_path / "by").to_pandas()
        same(found.astype("int64"), frame)
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
        with pytest.raises(DataError, match=r"holds other things \(a.parquet, b.parquet\)"):
            write_parquet(XShards.partition({"x": np.arange(3)}), tmp_path)
        failing = XShards.partition({"x": np.arange(3)}, 1).transform_shard(lambda shard: {"x": [object()]})
        with pytest.raises(Exception, match="object"):
            write_parquet(failing, tmp_path / "half")
        assert list((tmp_path / "half").iterdir()) == []


def picture(path: Path, height: int, width: int, value: int, mode: str = "RGB") -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    channels = (3,) if mode == "RGB" else ()
    Image.fromarray(np.full((height, width, *channels), value, "uint8")).save(path)


class TestImages:
    def test_folders_are_classes(self, context: Context, tmp_path):
        for number in range(6):
            picture(tmp_path / ("dog" if number % 2 else "cat") / f"{number}.png", 4, 5, number)
        (tmp_path / "readme.txt").write_text("not a picture")
        shards = read_image_folder(tmp_path)
        assert shards.classes == ("cat", "dog")
        found = shards.to_numpy()
        assert found["image"].shape == (6, 4, 5, 3)
        assert found["image"].dtype == np.uint8
        assert found["image"][:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
        assert found["label"].tolist() == [0, 0, 0, 1, 1, 1]
        assert found["path"][0] == f"{tmp_path}/cat/0.png"
        grey = read_images(f"{tmp_path}/*/*.png", size=(2, 3), mode="L", with_label=True, num_shards=2)
        assert grey.to_numpy()["image"].shape == (6, 2, 3, 1)
        assert grey.classes == ("cat", "dog")
        assert "label" not in read_images(tmp_path, size=2).first()

    def test_errors(self, context: Context, tmp_path):
        from PIL import Image

        picture(tmp_path / "a" / "1.png", 4, 5, 0)
        picture(tmp_path / "b" / "2.png", 6, 5, 0)
        with pytest.raises(DataError, match=r"a/1.png is 4 x 5 pixels .*b/2.png is 6 x 5. Give size="):
            read_images(tmp_path)
        with pytest.raises(DataError, match=r"a/1.png is 4 x 5 pixels .*b/2.png is 6 x 5. Give size="):
            read_images(tmp_path, num_shards=1)
        whole = np.random.default_rng(0).integers(0, 255, (30, 30, 3), "uint8")
        Image.fromarray(whole).save(tmp_path / "b" / "2.png")
        (tmp_path / "b" / "2.png").write_bytes((tmp_path / "b" / "2.png").read_bytes()[:900])
        with pytest.raises(DataError, match=r"2.png cannot be read"):
            read_images(tmp_path, size=4)
        with pytest.raises(ArgumentError, match="mode='rgb' is not known"):
            read_images(tmp_path, mode="rgb")
        picture(tmp_path / "3.png", 4, 4, 0)
        with pytest.raises(DataError, match=r"3.png lies in .* itself"):
            read_image_folder(tmp_path)

    def test_deep_pictures_are_refused_instead_of_clipped(self, local: Context, tmp_path):
        from PIL import Image

        Image.fromarray(np.full((2, 2), 40000, "uint16")).save(tmp_path / "deep.png")
        with pytest.raises(DataError, match=r"deep.png has more than 8 bits"):
            read_images(tmp_path)


@pytest.mark.slow
class TestTfrecord:
    def test_rows_come_back(self, context: Context, tmp_path):
        pytest.importorskip("tensorflow")
        data = {
            "image": np.arange(24, dtype="uint8").reshape(6, 2, 2),
            "score": np.arange(6, dtype="f4") / 3,
            "name": np.array([b"a\0", b"bb", b"c", b"d", b"e", b"f"], object),
        }
        write_tfrecord(XShards.partition(data, 2), tmp_path / "out")
        found = read_tfrecord(tmp_path / "out")
        assert found.shard_rows() == [3, 3]
        flat = found.to_numpy()
        np.testing.assert_array_equal(flat["image"], data["image"].reshape(6, 4))
        np.testing.assert_array_equal(flat["score"], data["score"])
        assert flat["name"].tolist() == data["name"].tolist()
        features = {"image": ("uint8", (2, 2)), "name": ("str", ())}
        shaped = read_tfrecord(f"file://{tmp_path}/out", features=features, num_shards=1).to_numpy()
        np.testing.assert_array_equal(shaped["image"], data["image"])
        assert shaped["image"].dtype == np.uint8
        assert shaped["name"].tolist()[1] == "bb"

    def test_errors(self, local: Context, tmp_path):
        pytest.importorskip("tensorflow")
        write_tfrecord(XShards.partition({"x": np.arange(5), "y": np.ones((5, 3))}, 1), tmp_path)
        path = tmp_path / "part-00000.tfrecord"
        with pytest.raises(ColumnError, match=r"features='xx' is not in part-00000.tfrecord.*Did you mean 'x'"):
            read_tfrecord(path, features={"xx": ("int64", ())})
        with pytest.raises(DataError, match=r"part-00000.tfrecord, record 1: feature 'y' is missing, or has not 2"):
            read_tfrecord(path, features={"y": ("float32", (2,))})
        whole = path.read_bytes()
        path.write_bytes(whole[:-7])
        with pytest.raises(DataError, match=r"part-00000.tfrecord, record 5: the file is truncated or damaged"):
            read_tfrecord(path)
        path.write_bytes(whole[:-30] + b"?" + whole[-29:])
        with pytest.raises(DataError, match=r"part-00000.tfrecord, record 5: the file is truncated or damaged"):
            read_tfrecord(path)
        path.write_bytes(b"")
        with pytest.raises(DataError, match="is empty"):
            read_tfrecord(path)


def test_missing_packages_are_told_with_their_remedy(tmp_path, monkeypatch):
    from orca.shards.readers import image_files, tfrecord_files

    put(tmp_path, a_png="x")
    for name in ("PIL", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pip install pillow"):
        image_files._decoded(listing(tmp_path)[0], None, "RGB")
    with pytest.raises(MissingPackageError, match="pip install tensorflow-cpu"):
        tfrecord_files._read_file(listing(tmp_path)[0], None)


def test_importing_the_readers_loads_nothing_heavy():
    code = (
        "import sys, orca.data; from orca.data import read_csv, read_images, read_tfrecord;"
        "print([m for m in ('pandas', 'pyarrow', 'PIL', 'tensorflow', 'fsspec', 'ray', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
