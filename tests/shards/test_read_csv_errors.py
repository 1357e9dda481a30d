"""Errors of read_csv name the file, the line and the fix."""

from __future__ import annotations

import pytest

from orca.context import Context
from orca.data import read_csv
from orca.errors import ArgumentError, ColumnError, DataError
from tests.shards.reader_files import put


class TestCsvErrors:
    def fails(self, error, match, folder, **options):
        with pytest.raises(error, match=match):
            read_csv(folder, **options)

    def test_missing_and_empty_files_are_refused(self, context: Context, tmp_path):
        self.fails(DataError, "nothing.csv' does not exist", tmp_path / "nothing.csv")
        self.fails(DataError, r"\*.csv' matches no file", f"{tmp_path}/*.csv")
        self.fails(DataError, "holds no data file", tmp_path)
        self.fails(ArgumentError, "empty list", [])
        put(tmp_path, a_csv="a\n1\n", b_csv="")
        self.fails(DataError, r"b.csv is empty \(0 bytes\)", tmp_path)
        self.fails(DataError, r"b.csv is empty \(0 bytes\)", tmp_path, na_values=["x"])
        (tmp_path / "b.csv").write_text("\n\n")
        self.fails(DataError, "b.csv has no line with data", tmp_path)

    def test_unknown_columns_and_options_are_refused(self, context: Context, tmp_path):
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
            (
                "a,d\n1,2024-01-01\n2,soon\n",
                "line 3: column 'd' has 'soon', which is not a date",
                {"parse_dates": ["d"]},
            ),
            ("d\n01/02/2024\n", "day and month can be mixed up. Give date_format=", {"parse_dates": ["d"]}),
        ],
    )
    def test_bad_contents_are_named_by_file_and_line(self, local: Context, tmp_path, text, match, options):
        (tmp_path / "bad.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        self.fails(DataError, match, tmp_path / "bad.csv", **options)

    def test_lines_are_counted_from_the_start_of_a_split_file(self, context: Context, tmp_path):
        path = tmp_path / "cut.csv"
        path.write_text("a,b\n" + "1,2\n" * 800 + "3\n" + "1,2\n" * 198)
        self.fails(DataError, "cut.csv, line 802: expected 2 fields, found 1", path, num_shards=4)
        path.write_text("a,b\n" + "1,2\n" * 800 + "x,2\n" + "1,2\n" * 198)
        self.fails(DataError, "cut.csv, line 802: column 'a' has 'x'", path, num_shards=4, dtype={"a": int})

    def test_equal_names_in_two_folders_are_distinguished(self, local: Context, tmp_path):
        put(tmp_path / "one", a_csv="a\n1\n")
        put(tmp_path / "two", a_csv="a\nx\n")
        self.fails(DataError, "two/a.csv: column 'a' is text, in .*one/a.csv it is int64", tmp_path)
