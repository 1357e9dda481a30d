"""`orca predict`: files in, a file out, with the numbers of the model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tests.backends.openvino_models import dense, dense_result, image, image_result, two

x = np.random.default_rng(0).normal(size=(700, 6)).astype("f4")
wanted = dense_result(x)


def orca(*arguments, code=0):
    command = [sys.executable, "-m", "orca.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("cli")
    dense(made / "dense.xml")
    return made


def test_npy_to_npy_with_a_bar(folder):
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-m", "orca.cli", "predict", folder / "dense.xml", folder / "x.npy", folder / "y.npy"]
    done = subprocess.run(
        [*map(str, command), "--progress", "--batch-size", "16"], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert "700/700" in done.stderr
    assert "row/s" in done.stderr
    assert "700 rows in" in done.stdout
    assert "rows/s" in done.stdout
    np.testing.assert_allclose(np.load(folder / "y.npy"), wanted, atol=1e-5)


def test_several_csv_files_to_parquet_and_csv(folder):
    frame = pd.DataFrame(x, columns=list("abcdef")).assign(id=np.arange(700))
    frame[:300].to_csv(folder / "part-0.csv", index=False)
    frame[300:].to_csv(folder / "part-1.csv", index=False)
    orca("predict", folder / "dense.xml", folder / "part-*.csv", folder / "out.parquet", "--columns", "a,b,c,d,e,f")
    found = pd.read_parquet(folder / "out.parquet")
    assert list(found.columns) == [*"abcdef", "id", "prediction"]
    assert found["id"].tolist() == list(range(700))
    np.testing.assert_allclose(np.stack(found["prediction"]), wanted, atol=1e-5)
    options = ("--columns", "a,b,c,d,e,f", "--output-cols", "score")
    orca("predict", folder / "dense.xml", folder / "part-*.csv", folder / "out.csv", *options)
    found = pd.read_csv(folder / "out.csv")
    np.testing.assert_allclose(found[[f"score_{k}" for k in range(5)]].to_numpy(), wanted, atol=1e-5)


def test_parquet_columns_are_found_by_the_names_of_the_inputs(folder):
    pd.DataFrame({"features": list(x), "id": np.arange(700)}).to_parquet(folder / "rows.parquet")
    orca("predict", folder / "dense.xml", f"file://{folder}/rows.parquet", f"file://{folder}/far.parquet")
    np.testing.assert_allclose(np.stack(pd.read_parquet(folder / "far.parquet")["prediction"]), wanted, atol=1e-5)


def test_images_are_resized_to_the_model(folder):
    from PIL import Image

    pictures = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3)).astype("u1")
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number}.png")
    image(folder / "image.xml")
    orca("predict", folder / "image.xml", folder / "*.png", folder / "images.parquet", "--scale", "255")
    found = pd.read_parquet(folder / "images.parquet")
    assert [path.rpartition("/")[2] for path in found["path"]] == [f"{number}.png" for number in range(5)]
    right = image_result(pictures.transpose(0, 3, 1, 2) / 255)
    np.testing.assert_allclose(np.stack(found["prediction"]), right, atol=1e-5)


def test_mistakes_are_one_sentence_and_leave_no_file(folder):
    np.save(folder / "narrow.npy", x[:, :5])
    said = orca("predict", folder / "dense.xml", folder / "narrow.npy", folder / "none.npy", code=1)
    assert said.startswith("DataError: The input 'features' [?, 6] does not take rows of shape [5]")
    assert not list(folder.glob("none*"))
    assert "does not exist" in orca("predict", folder / "absent.xml", folder / "x.npy", folder / "none.npy", code=1)
    assert "does not exist" in orca("predict", folder / "dense.xml", folder / "absent.npy", folder / "none.npy", code=1)
    assert ".parquet" in orca("predict", folder / "dense.xml", folder / "narrow.npy", folder / "none.txt", code=2)
    two(folder / "two.xml")
    pd.DataFrame({"zeta": [[1.0, 2.0]], "alpha": [[1.0, 2.0, 3.0]]}).to_parquet(folder / "two.parquet")
    assert "table" in orca("predict", folder / "two.xml", folder / "two.parquet", folder / "none.npy", code=2)
    orca("predict", folder / "two.xml", folder / "two.parquet", folder / "both.parquet")
    assert list(pd.read_parquet(folder / "both.parquet").columns) == ["zeta", "alpha", "wide", "apex"]
