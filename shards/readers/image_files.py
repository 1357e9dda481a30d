"""read_images and read_image_folder: images as shards of uint8 arrays, with labels from their folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.core.arguments import check_count, check_flag, check_path, shown, wrong
from orca.core.session import active
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.readers.paths import File, Paths, checked_count, grouped, listing, naming_file_in_errors
from orca.shards.readers.reading import own_errors, read
from orca.shards.xshards import XShards

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LAB": 3}
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif")
"""Files of a folder with these endings count as images; a file named explicitly is always read."""
_PER_SHARD = 1000


class ImageShards(XShards):
    """Shards of ``{"image": …, "path": …}``; with labels, ``classes[label]`` is the name of the folder."""

    def __init__(self, shards: XShards, classes: tuple[str, ...]) -> None:
        self._lazy = shards._lazy
        self.classes = classes


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
    """Read images as shards of ``{"image": uint8 (n, height, width, channels), "path": text}``.

    Args:
        paths: A path, a folder, a glob, an fsspec URL, or a list of them.
        size: (height, width) to resize to, or one number for both. Default: all images must have the same size.
        mode: Pillow's mode, such as "RGB", "L" (grey) or "RGBA".
        with_label: Add "label", the index of the file's folder in ``classes``, the sorted names of all folders.
        num_shards: Number of shards. Default: one per core, or one per 1000 images if that is more.
        storage_options: Options of the fsspec file system.

    Returns:
        XShards with the attribute ``classes``, read eagerly.

    Raises:
        ArgumentError: If an option is not valid.
        DataError: If an image cannot be read, or the sizes differ.

    >>> import tempfile, numpy as np
    >>> from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> Image.fromarray(np.zeros((4, 6, 3), "uint8")).save(f"{folder.name}/black.png")
    >>> read_images(folder.name, size=(2, 3)).to_numpy()["image"].shape
    (1, 2, 3, 3)
    >>> folder.cleanup()
    """
    with_label = check_flag("with_label", with_label)
    _check(size, mode, num_shards)
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
    """Read a folder of images with one subfolder per class, ``path/<class>/…/image``, as `read_images` does.

    Each shard has the entry "label", the index of the class in ``classes``.

    Args:
        path: The folder, a path or an fsspec URL.
        size: As in `read_images`.
        mode: As in `read_images`.
        num_shards: As in `read_images`.
        storage_options: As in `read_images`.

    Returns:
        XShards with the attribute ``classes``, read eagerly.

    Raises:
        ArgumentError: If an option is not valid.
        DataError: If an image cannot be read or is not in a subfolder, or the sizes differ.

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
    _check(size, mode, num_shards)
    files = listing(check_path("path", path), storage_options, ENDINGS, argument="path")
    names = []
    for file in files:
        full = file.url.partition("://")[2] or file.url
        below = full[full.index(file.root.strip("/")) + len(file.root.strip("/")) :].strip("/")
        folder, _, rest = below.partition("/")
        if not rest:
            raise DataError(f"{file.label} is in {os.fspath(path)!r} itself; expected one subfolder per class.")
        names.append(folder)
    return _read(files, names, size, mode, num_shards)


def _read(files: list[File], names: list[str], size: Any, mode: str, num_shards: int | None) -> ImageShards:
    shape = _shape(size)
    classes = tuple(sorted(set(names)))
    number = {name: index for index, name in enumerate(classes)}
    pictures = [Picture(file, number[names[index]] if names else -1) for index, file in enumerate(files)]
    count = checked_count(num_shards) or max(active().cores, -(-len(files) // _PER_SHARD))
    if num_shards is not None and num_shards > len(files):
        raise ArgumentError(f"num_shards={num_shards} is more than the {len(files)} images.")
    width = max(len(file.url) for file in files)
    groups = grouped(pictures, min(count, len(files)))
    with own_errors():
        shards = read(groups, read_group, shape, mode, width)
        # Counting the rows waits for Ray's tasks, so that this call reports a broken image.
        shards.shard_rows()
        if shape is None:
            _check_sizes(shards.transform_shard(lambda shard: (shard["image"].shape[1:3], shard["path"][0])).collect())
    return ImageShards(shards, classes)


def _check(size: Any, mode: str, num_shards: int | None) -> None:
    """Check arguments before any file is listed."""
    if not isinstance(mode, str) or mode not in CHANNELS:
        raise ArgumentError(f"mode={shown(mode)} is not supported. Use one of {', '.join(CHANNELS)}.")
    _shape(size)
    checked_count(num_shards)


def _shape(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = size if isinstance(size, tuple | list) else (size, size)
    try:
        height, width = (check_count("size", side) for side in pair)
    except ValueError:
        raise wrong("size", size, "(height, width) in pixels") from None
    return height, width


def read_group(
    pictures: list[Picture], shape: tuple[int, int] | None, mode: str, width: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Read images into one shard; `width` is the maximum length of a path."""
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


def _check_sizes(sizes: list[tuple[Any, Any]]) -> None:
    (height, width), path = sizes[0]
    for (high, wide), other in sizes[1:]:
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
        raise MissingPackageError("Reading images needs Pillow. Run: pip install pillow") from error
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
