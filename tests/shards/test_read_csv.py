"""read_csv on all three engines: rows, types and options are those of plain pandas."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from orca.context import Context
from orca.data import read_csv
from orca.errors import DataError
from orca.shards.readers import csv_files
from orca.shards.readers.paths import listing
from tests.shards.reader_files import put, same, ten_files


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

    def test_types_are_unified(self, context: Context, tmp_path):
        put(
            tmp_path,
            a_csv="n,text,flag,none\n1,x,True,\n2,y,False,\n",
            b_csv="n,text,flag,none\n1.5,,,\n",
            c_csv="none,flag,text,n\n",
        )
        shards = read_csv(tmp_path)
        assert shards.shard_rows() == [2, 1, 0]
        result = shards.collect()
        assert [list(part.columns) for part in result] == [["n", "text", "flag", "none"]] * 3
        assert len({tuple(map(str, part.dtypes)) for part in result}) == 1
        assert result[0].dtypes["n"] == result[0].dtypes["none"] == np.float64
        assert result[1]["text"].isna().all()
        put(tmp_path / "two", a_csv="age\n1\n", b_csv="age\nold\n")
        with pytest.raises(
            DataError, match=r"^b.csv: column 'age' is text, in a.csv it is int64. Give dtype=\{'age': ...\}.$"
        ):
            read_csv(tmp_path / "two")
        with pytest.raises(DataError, match=r"b.csv: column 'age' is text, in a.csv it is int64"):
            read_csv(tmp_path / "two", num_shards=1)
        assert read_csv(tmp_path / "two", dtype={"age": str}).to_pandas()["age"].tolist() == ["1", "old"]

    def test_a_split_file_equals_pandas(self, context: Context, tmp_path, monkeypatch):
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
    {"names": ["p", "q"], "header": 0, "usecols": [0, 1]},
    {"names": ["gap", "row"], "header": 0, "usecols": [3, 0], "dtype": {"gap": "float64"}},
    {"names": ["p", "q"], "header": None, "usecols": [0, 3], "dtype": str},
    {"names": ["p", "q"], "header": 0, "usecols": [0, 3], "na_values": ["7"]},
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
    def test_options_have_the_meaning_of_pandas(self, local: Context, tmp_path, options):
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
            ("1::x::3\n4::y::6\n", {"sep": "::", "engine": "python", "names": ["user", "name", "score"]}),
            ("a,b\n1,5\n,x\n", {}),
        ],
    )
    def test_odd_files_are_read_as_pandas_reads_them(self, local: Context, tmp_path, text, options):
        path = tmp_path / "odd.csv"
        path.write_bytes(text.encode())
        pd.testing.assert_frame_equal(read_csv(path, **options).first(), pd.read_csv(path, **options))

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("a::b\n1::x\n2::y\n", {"sep": "::"}),
            ("a;b\n1,x\n", {"sep": "[,;]"}),
            ("a¦b\n1¦x\n", {"sep": "¦"}),
            ("a,b\n1,x\nin all,1\n", {"skipfooter": 1}),
        ],
    )
    def test_options_of_the_python_reader_need_no_engine(self, local: Context, tmp_path, text, options):
        path = tmp_path / "odd.csv"
        path.write_bytes(text.encode())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = read_csv(path, **options).first()
        pd.testing.assert_frame_equal(found, pd.read_csv(path, engine="python", **options))

    def test_too_few_names_say_how_many_the_file_has(self, local: Context, tmp_path):
        put(tmp_path, a_csv="a,b,c\n1,2,3\n")
        for usecols in (None, [0], ["p", "q"]):
            with pytest.raises(DataError, match=r"has 3 columns, names= has 2.*usecols= with one position"):
                read_csv(tmp_path, header=0, names=["p", "q"], usecols=usecols)

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

    def test_ranges_that_disagree_become_text_as_in_the_unsplit_file(self, local: Context, tmp_path):
        path = tmp_path / "mixed.csv"
        path.write_text("id,n\n" + "007,1\n" * 50 + "x1,2\n" * 50 + "1.50,\n" * 50)
        result = read_csv(path, num_shards=5)
        assert result.num_partitions() == 5
        same(result.to_pandas(), pd.read_csv(path))
        assert result.to_pandas()["id"].iloc[0] == "007"

    def test_a_file_with_quotes_is_not_split(self, local: Context, tmp_path):
        path = tmp_path / "quoted.csv"
        path.write_text("a,b\n" + '1,"x\ny"\n' * 100)
        assert len(csv_files.cut(listing(path)[0], csv_files.checked(*[None] * 5, "infer", ",", {}), 4)) == 1
        result = read_csv(path, num_shards=4)
        assert result.shard_rows() == [25] * 4
        same(result.to_pandas(), pd.read_csv(path))

    def test_large_integers_are_never_rounded(self, local: Context, tmp_path):
        (tmp_path / "long.csv").write_text("id\n99999999999999999999\n1\n")
        assert read_csv(tmp_path / "long.csv").first()["id"].tolist() == ["99999999999999999999", "1"]
        (tmp_path / "long.csv").unlink()
        put(tmp_path, a_csv=f"id\n{2**53 + 1}\n", b_csv="id\n1.5\n")
        with pytest.raises(DataError, match=r"a.csv: column 'id' has integers that are too large"):
            read_csv(tmp_path)
