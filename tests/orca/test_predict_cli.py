"""`orca predict`: files in, a file out, with the outputs of the model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tests.backends.openvino_models import dense, dense_result, image, image_result, two

x = np.random.default_rng(0).normal(size=(700, 6)).astype("f4")
expected = dense_result(x)


def orca(*arguments, code=0):
    command = [sys.executable, "-m", "orca.cli", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert run.returncode == code, run.stderr
    return run.stdout if code == 0 else run.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    dense(path / "dense.xml")
    return path


def test_npy_to_npy_with_a_progress_bar(folder):
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-m", "orca.cli", "predict", folder / "dense.xml", folder / "x.npy", folder / "y.npy"]
    run = subprocess.run(
        [*map(str, command), "--progress", "--batch-size", "16"], capture_output=True, text=True, timeout=170
    )
    assert run.returncode == 0, run.stderr
    assert "700/700" in run.stderr
    assert "row/s" in run.stderr
    assert "700 rows in" in run.stdout
    assert "rows/s" in run.stdout
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, atol=1e-5)


def test_several_csv_files_to_parquet_and_csv(folder):
    frame = pd.DataFrame(x, columns=list("abcdef")).assign(id=np.arange(700))
    frame[:300].to_csv(folder / "part-0.csv", index=False)
    frame[300:].to_csv(folder / "part-1.csv", index=False)
    orca("predict", folder / "dense.xml", folder / "part-*.csv", folder / "out.parquet", "--columns", "a,b,c,d,e,f")
    table = pd.read_parquet(folder / "out.parquet")
    assert list(table.columns) == [*"abcdef", "id", "prediction"]
    assert table["id"].tolist() == list(range(700))
    np.testing.assert_allclose(np.stack(table["prediction"]), expected, atol=1e-5)
    options = ("--columns", "a,b,c,d,e,f", "--output-cols", "score")
    orca("predict", folder / "dense.xml", folder / "part-*.csv", folder / "out.csv", *options)
    table = pd.read_csv(folder / "out.csv")
    np.testing.assert_allclose(table[[f"score_{k}" for k in range(5)]].to_numpy(), expected, atol=1e-5)


def test_parquet_columns_are_found_by_the_names_of_the_inputs(folder):
    pd.DataFrame({"features": list(x), "id": np.arange(700)}).to_parquet(folder / "rows.parquet")
    orca("predict", folder / "dense.xml", f"file://{folder}/rows.parquet", f"file://{folder}/far.parquet")
    np.testing.assert_allclose(np.stack(pd.read_parquet(folder / "far.parquet")["prediction"]), expected, atol=1e-5)


def test_images_are_resized_to_the_model(folder):
    from PIL import Image

    pictures = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3)).astype("u1")
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number}.png")
    image(folder / "image.xml")
    orca("predict", folder / "image.xml", folder / "*.png", folder / "images.parquet", "--scale", "255")
    table = pd.read_parquet(folder / "images.parquet")
    assert [path.rpartition("/")[2] for path in table["path"]] == [f"{number}.png" for number in range(5)]
    right = image_result(pictures.transpose(0, 3, 1, 2) / 255)
    np.testing.assert_allclose(np.stack(table["prediction"]), right, atol=1e-5)


def test_errors_are_one_sentence_and_leave_no_file(folder):
    np.save(folder / "narrow.npy", x[:, :5])
    message = orca("predict", folder / "dense.xml", folder / "narrow.npy", folder / "none.npy", code=1)
    assert message.startswith("DataError: The input 'features' [?, 6] does not take rows of shape [5]")
    assert not list(folder.glob("none*"))
    assert "does not exist" in orca("predict", folder / "absent.xml", folder / "x.npy", folder / "none.npy", code=1)
    assert "does not exist" in orca("predict", folder / "dense.xml", folder / "absent.npy", folder / "none.npy", code=1)
    assert ".parquet" in orca("predict", folder / "dense.xml", folder / "narrow.npy", folder / "none.txt", code=2)
    two(folder / "two.xml")
    pd.DataFrame({"zeta": [[1.0, 2.0]], "alpha": [[1.0, 2.0, 3.0]]}).to_parquet(folder / "two.parquet")
    assert "table" in orca("predict", folder / "two.xml", folder / "two.parquet", folder / "none.npy", code=2)
    orca("predict", folder / "two.xml", folder / "two.parquet", folder / "both.parquet")
    assert list(pd.read_parquet(folder / "both.parquet").columns) == ["zeta", "alpha", "wide", "apex"]


ROWS = ["--columns", "a,b,c,d,e,f"]


def test_types_of_a_csv_file_fit_all_its_rows(folder):
    whole = pd.DataFrame(np.arange(720_000).reshape(-1, 6) % 7, columns=list("abcdef")).assign(note=1)
    frame = whole.astype({"f": float, "note": object})
    frame.loc[len(frame) - 1, "f"], frame.loc[len(frame) - 1, "note"] = 0.5, "last"
    text = whole[:-1].to_csv(index=False) + frame[-1:].to_csv(index=False, header=False)
    (folder / "late.csv").write_text(text)
    orca("predict", folder / "dense.xml", folder / "late.csv", folder / "late.parquet", *ROWS)
    table = pd.read_parquet(folder / "late.parquet")
    assert len(table) == 120_000
    assert table["f"].iloc[-1] == 0.5
    assert table["note"].iloc[-1] == "last"
    assert table["a"].dtype == np.int64
    np.testing.assert_allclose(
        np.stack(table["prediction"][-9:]), dense_result(frame[list("abcdef")][-9:].to_numpy("f4")), atol=1e-5
    )


def test_files_with_different_types_are_unified_or_refused(folder):
    frame = pd.DataFrame(x[:20], columns=list("abcdef"))
    for ending, write in ((".csv", lambda f, p: f.to_csv(p, index=False)), (".parquet", lambda f, p: f.to_parquet(p))):
        write((frame * 9).round().astype(int), folder / f"mixed-0{ending}")
        write(frame, folder / f"mixed-1{ending}")
        orca("predict", folder / "dense.xml", folder / f"mixed-*{ending}", folder / "alike.parquet", *ROWS)
        table = pd.read_parquet(folder / "alike.parquet")
        np.testing.assert_allclose(np.stack(table["prediction"][20:]), expected[:20], atol=1e-5)
    frame.assign(a="text").to_parquet(folder / "mixed-2.parquet")
    message = orca("predict", folder / "dense.xml", folder / "mixed-*.parquet", folder / "none.parquet", *ROWS, code=1)
    assert message.startswith("DataError: ")
    assert "mixed-2.parquet: column 'a' is" in message
    frame.rename(columns={"a": "z"}).to_parquet(folder / "mixed-2.parquet")
    message = orca("predict", folder / "dense.xml", folder / "mixed-*.parquet", folder / "none.parquet", *ROWS, code=1)
    assert "have different columns: a, z" in message
    assert not list(folder.glob("none*"))


def test_no_rows_give_a_file_with_columns_and_no_rows(folder):
    pd.DataFrame({"features": list(x), "id": np.arange(700)}).iloc[:0].to_csv(folder / "empty.csv", index=False)
    np.save(folder / "empty.npy", x[:0])
    for source in ("empty.csv", "empty.npy"):
        orca("predict", folder / "dense.xml", folder / source, folder / "empty.parquet")
        table = pd.read_parquet(folder / "empty.parquet")
        assert len(table) == 0
        assert list(table.columns) == (["features", "id", "prediction"] if source == "empty.csv" else ["prediction"])
        orca("predict", folder / "dense.xml", folder / source, folder / "empty-out.csv")
        assert "prediction" in (folder / "empty-out.csv").read_text()
    orca("predict", folder / "dense.xml", folder / "empty.npy", folder / "empty-out.npy")
    assert np.load(folder / "empty-out.npy").shape == (0, 5)


def test_a_batch_of_one_does_not_cause_tiny_row_groups(folder):
    import pyarrow.parquet as pq

    dense(folder / "one.xml", rows=1)
    np.save(folder / "many.npy", np.tile(x, (8, 1)))
    orca("predict", folder / "one.xml", folder / "many.npy", folder / "many.parquet")
    written = pq.ParquetFile(folder / "many.parquet").metadata
    assert (written.num_rows, written.num_row_groups) == (5600, 2)


def test_images_for_a_model_that_takes_none_are_refused(folder):
    from PIL import Image

    Image.fromarray(np.zeros((8, 8, 3), "u1")).save(folder / "black.jpg")
    message = orca("predict", folder / "dense.xml", folder / "black.jpg", folder / "none.parquet", code=1)
    assert message.startswith(
        "DataError: Images need a model with one input of four axes; this one has 'features' [?, 6]"
    )
