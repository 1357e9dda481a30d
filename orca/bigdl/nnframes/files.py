"""What a saved `NNModel` has beside its params: the layer and the preprocessing of features."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import fsspec

from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.preprocessing import Preprocessing, from_plain, to_plain
from orca.bigdl.nn.layer import Model
from orca.errors import DataError

_LAYER, _PREPROCESSING = "layer.bigdl", "preprocessing.json"


def write_model(folder: str, layer: Layer, preprocessing: Preprocessing | None) -> None:
    """Write a layer and a preprocessing into a folder, on any fsspec path."""
    files, place = fsspec.url_to_fs(_plain(folder))
    with tempfile.TemporaryDirectory() as local:
        path = os.path.join(local, _LAYER)
        layer.saveModel(path)
        files.put_file(path, f"{place}/{_LAYER}")
    with files.open(f"{place}/{_PREPROCESSING}", "w") as file:
        json.dump(to_plain(preprocessing), file)


def read_model(folder: str) -> tuple[Any, Preprocessing | None]:
    """Read what `write_model` wrote.

    Raises:
        DataError: If the folder holds no such model.
    """
    files, place = fsspec.url_to_fs(_plain(folder))
    try:
        with files.open(f"{place}/{_PREPROCESSING}", "r") as file:
            preprocessing = from_plain(json.load(file))
        with tempfile.TemporaryDirectory() as local:
            path = os.path.join(local, _LAYER)
            files.get_file(f"{place}/{_LAYER}", path)
            return Model.loadModel(path), preprocessing
    except (OSError, ValueError) as error:
        raise DataError(f"{folder!r} holds no model that NNModel.save has written: {error}") from error


def _plain(folder: str) -> str:
    """Return a path as fsspec takes it; Hadoop writes local ones as ``file:/folder``."""
    return folder.removeprefix("file:") if folder.startswith("file:/") and "://" not in folder else folder
