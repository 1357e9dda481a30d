"""read_images and read_image_folder: pictures as shards of uint8 arrays, with labels from their folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.core.session import active
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.readers.paths import File, Paths, checked_count, grouped, listing, naming_file_in_errors
from orca.shards.readers.reading import own_errors, read
from orca.shards.xshards import XShards

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LAB": 3}
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif")
"""Which files of a folder count as pictures; a file that is named itself is always read."""
_PER_SHARD = 1000


class ImageShards(XShards):
    """Shards of ``{"image": …, "path": …}``; with labels, ``classes[label]`` is the name of the folder."""

    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A file and its label, -1 for none."""

    file: File
    label: int


def read_images(
    paths: Paths,
    *,
    size: int | tuple[int, int] | None = None,
    mode: str = "RGB",
    with_label: bool = False,
    num_shards: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ImageShards:
    """Read pictures as shards of ``{"image": uint8 (n, height, width, channels), "path": text}``.

    `size` is (height, width), or one number for both; without it all pictures must be of one size. `mode` is
    Pillow's: "RGB", "L" (grey), "RGBA". With labels there is also "label", a number in the sorted names of the
    folders that the files lie in, which ``shards.classes`` holds.

    >>> import tempfile, numpy as np
    >>> from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> Image.fromarray(np.zeros((4, 6, 3), "uint8")).save(f"{folder.name}/black.png")
    >>> read_images(folder.name, size=(2, 3)).to_numpy()["image"].shape
    (1, 2, 3, 3)
    >>> folder.cleanup()
    """
    files = listing(paths, storage_options, ENDINGS)
    names = [file.url.rpartition("/")[0].rpartition("/")[2] for file in files] if with_label else []
    return _read(files, names, size, mode, num_shards)


def read_image_folder(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    mode: str = "RGB",
    num_shards: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ImageShards:
    """Read ``path/<class>/…/picture`` like `read_images`; the label is the number of the class in ``.classes``.

    >>> import os, tempfile, numpy as np
    >>> from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in "dog", "cat":
    ...     os.mkdir(f"{folder.name}/{name}")
    ...     Image.fromarray(np.zeros((4, 4, 3), "uint8")).save(f"{folder.name}/{name}/1.png")
    >>> shards = read_image_folder(folder.name)
    >>> shards.classes, shards.to_numpy()["label"].tolist()
    (('cat', 'dog'), [0, 1])
    >>> folder.cleanup()
    """
    files = listing(path, storage_options, ENDINGS)
    names = []
    for file in files:
        place = file.url.partition("://")[2] or file.url
        below = place[place.index(file.root.strip("/")) + len(file.root.strip("/")) :].strip("/")
        folder, _, rest = below.partition("/")
        if not rest:
            raise DataError(f"{file.label} lies in {os.fspath(path)!r} itself; expected it in a folder per class.")
        names.append(folder)
    return _read(files, names, size, mode, num_shards)


def _read(files: list[File], names: list[str], size: Any, mode: str, num_shards: int | None) -> ImageShards:
    if mode not in CHANNELS:
        raise ArgumentError(f"mode={mode!r} is not known. Use one of {', '.join(CHANNELS)}.")
    shape = _shape(size)
    classes = tuple(sorted(set(names)))
    number = {name: index for index, name in enumerate(classes)}
    pictures = [Picture(file, number[names[index]] if names else -1) for index, file in enumerate(files)]
    count = checked_count(num_shards) or max(active().cores, -(-len(files) // _PER_SHARD))
    if num_shards is not None and num_shards > len(files):
        raise ArgumentError(f"num_shards={num_shards} is more than the {len(files)} pictures.")
    width = max(len(file.url) for file in files)
    groups = grouped(pictures, min(count, len(files)))
    with own_errors():
        shards = read(groups, read_group, shape, mode, width)
        # Asking for the rows waits for Ray's tasks, so that a broken picture is told here and not later.
        rows = shards.shard_rows()
        if shape is None:
            _check_sizes(shards.transform_shard(lambda shard: (shard["image"].shape[1:3], shard["path"][0])).collect())
    made = ImageShards(shards.engine, shards.parts)
    made._cached, made._rows = shards.is_cached(), rows
    made.classes = classes
    return made


def _shape(size: Any) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else size
    if pair is None:
        return None
    if len(pair) != 2 or any(not isinstance(side, int) or side < 1 for side in pair):
        raise ArgumentError(f"size={size!r}: expected (height, width) in pixels.")
    return pair[0], pair[1]


def read_group(
    pictures: list[Picture], shape: tuple[int, int] | None, mode: str, width: int
) -> dict[str, np.ndarray[Any, Any]]:
    """The pictures as one shard; `width` is how many letters a path may have."""
    first = _decoded(pictures[0].file, shape, mode)
    images = np.empty((len(pictures), *first.shape), np.uint8)
    for index, picture in enumerate(pictures):
        image = _decoded(picture.file, shape, mode) if index else first
        _check_sizes([(first.shape[:2], pictures[0].file.url), (image.shape[:2], picture.file.url)])
        images[index] = image
    shard = {"image": images, "path": np.array([picture.file.url for picture in pictures], f"U{width}")}
    if pictures[0].label >= 0:
        shard["label"] = np.array([picture.label for picture in pictures], np.int64)
    return shard


def _check_sizes(found: list[tuple[Any, Any]]) -> None:
    (height, width), path = found[0]
    for (high, wide), other in found[1:]:
        if (high, wide) != (height, width):
            raise DataError(
                f"{path} is {height} x {width} pixels (height x width), {other} is {high} x {wide}. "
                f"Give size=, for instance size=({height}, {width})."
            )


def _decoded(file: File, shape: tuple[int, int] | None, mode: str) -> np.ndarray[Any, Any]:
    import fsspec

    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("Reading pictures needs Pillow. Run: pip install pillow") from error
    with (
        naming_file_in_errors(file),
        fsspec.open(file.url, "rb", **file.storage) as handle,
        Image.open(handle) as image,
    ):
        if image.mode[:1] in "IF":
            raise DataError(f"{file.label} has more than 8 bits per channel (Pillow's mode {image.mode!r}).")
        converted = image.convert(mode)
        if shape is not None and converted.size != (shape[1], shape[0]):
            converted = converted.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
        array = np.asarray(converted, np.uint8)
    return array.reshape(array.shape[0], array.shape[1], CHANNELS[mode])
