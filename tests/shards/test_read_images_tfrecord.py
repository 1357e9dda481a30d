"""read_images, read_image_folder, read_tfrecord and write_tfrecord on all three engines."""

from __future__ import annotations

import numpy as np
import pytest

from orca import XShards
from orca.context import Context
from orca.data import read_image_folder, read_images, read_tfrecord, write_tfrecord
from orca.errors import ArgumentError, ColumnError, DataError
from tests.shards.reader_files import image_file


class TestImages:
    def test_folders_are_classes(self, context: Context, tmp_path):
        for number in range(6):
            image_file(tmp_path / ("dog" if number % 2 else "cat") / f"{number}.png", 4, 5, number)
        (tmp_path / "readme.txt").write_text("not an image")
        shards = read_image_folder(tmp_path)
        assert shards.classes == ("cat", "dog")
        result = shards.to_numpy()
        assert result["image"].shape == (6, 4, 5, 3)
        assert result["image"].dtype == np.uint8
        assert result["image"][:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
        assert result["label"].tolist() == [0, 0, 0, 1, 1, 1]
        assert result["path"][0] == f"{tmp_path}/cat/0.png"
        grey = read_images(f"{tmp_path}/*/*.png", size=(2, 3), mode="L", with_label=True, num_shards=2)
        assert grey.to_numpy()["image"].shape == (6, 2, 3, 1)
        assert grey.classes == ("cat", "dog")
        assert "label" not in read_images(tmp_path, size=2).first()

    def test_errors(self, context: Context, tmp_path):
        from PIL import Image

        image_file(tmp_path / "a" / "1.png", 4, 5, 0)
        image_file(tmp_path / "b" / "2.png", 6, 5, 0)
        with pytest.raises(DataError, match=r"a/1.png is 4 x 5 pixels .*b/2.png is 6 x 5. Give size="):
            read_images(tmp_path)
        with pytest.raises(DataError, match=r"a/1.png is 4 x 5 pixels .*b/2.png is 6 x 5. Give size="):
            read_images(tmp_path, num_shards=1)
        noise = np.random.default_rng(0).integers(0, 255, (30, 30, 3), "uint8")
        Image.fromarray(noise).save(tmp_path / "b" / "2.png")
        (tmp_path / "b" / "2.png").write_bytes((tmp_path / "b" / "2.png").read_bytes()[:900])
        with pytest.raises(DataError, match=r"2.png cannot be read"):
            read_images(tmp_path, size=4)
        with pytest.raises(ArgumentError, match="mode='rgb' is not supported"):
            read_images(tmp_path, mode="rgb")
        image_file(tmp_path / "3.png", 4, 4, 0)
        with pytest.raises(DataError, match=r"3.png is in .* itself"):
            read_image_folder(tmp_path)

    def test_deep_images_are_refused_instead_of_clipped(self, local: Context, tmp_path):
        from PIL import Image

        Image.fromarray(np.full((2, 2), 40000, "uint16")).save(tmp_path / "deep.png")
        with pytest.raises(DataError, match=r"deep.png has more than 8 bits"):
            read_images(tmp_path)


@pytest.mark.slow
class TestTfrecord:
    def test_rows_survive_a_round_trip(self, context: Context, tmp_path):
        pytest.importorskip("tensorflow")
        data = {
            "image": np.arange(24, dtype="uint8").reshape(6, 2, 2),
            "score": np.arange(6, dtype="f4") / 3,
            "name": np.array([b"a\0", b"bb", b"c", b"d", b"e", b"f"], object),
        }
        write_tfrecord(XShards.partition(data, 2), tmp_path / "out")
        result = read_tfrecord(tmp_path / "out")
        assert result.shard_rows() == [3, 3]
        flat = result.to_numpy()
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
        with pytest.raises(
            DataError, match=r"part-00000.tfrecord, record 1: feature 'y' is missing, or does not have 2"
        ):
            read_tfrecord(path, features={"y": ("float32", (2,))})
        content = path.read_bytes()
        path.write_bytes(content[:-7])
        with pytest.raises(DataError, match=r"part-00000.tfrecord, record 5: the file is truncated or damaged"):
            read_tfrecord(path)
        path.write_bytes(content[:-30] + b"?" + content[-29:])
        with pytest.raises(DataError, match=r"part-00000.tfrecord, record 5: the file is truncated or damaged"):
            read_tfrecord(path)
        path.write_bytes(b"")
        with pytest.raises(DataError, match="is empty"):
            read_tfrecord(path)
