"""JPEG and PNG images as inputs: decoded to the size, layout and type of a model's input, within limits."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.serving.checks import shown
from orca.serving.messages import HttpError
from orca.store.values import Port

Array = np.ndarray[Any, Any]
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_axes(port: Port) -> tuple[int, int, int] | None:
    """Return the axes of height, width and channels of an input that takes images, or None.

    >>> image_axes(Port("x", "float32", (-1, 192, 192, 3))), image_axes(Port("x", "float32", (-1, 64)))
    ((1, 2, 3), None)
    """
    if len(port.shape) != 4:
        return None
    if port.shape[3] in _MODES and port.shape[1] not in _MODES:
        return 1, 2, 3
    return (2, 3, 1) if port.shape[1] in _MODES else None


def decode_images(port: Port, images: Sequence[bytes], most_pixels: int) -> Array:
    """Return encoded images as an array for an input; they are resized if the input has a fixed size."""
    axes = image_axes(port)
    if axes is None:
        raise HttpError(400, f"The input {port.name!r} takes {shown(port.shape)}, which is not the shape of images.")
    if not images:
        raise HttpError(400, f"The input {port.name!r} has no image.")
    pixels = [_decode(port, data, axes, most_pixels) for data in images]
    if len({array.shape for array in pixels}) > 1:
        raise HttpError(400, f"The images for {port.name!r} have different sizes.")
    return np.ascontiguousarray(np.stack(pixels), port.dtype)


def _decode(port: Port, data: bytes, axes: tuple[int, int, int], most_pixels: int) -> Array:
    from PIL import Image

    height, width, channels = (port.shape[axis] for axis in axes)
    try:
        # Only the header is read here; nothing is decoded before the size is known.
        image: Any = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        size = image.size
        if size[0] * size[1] <= most_pixels:
            if height != -1 and width != -1:
                image.draft(None, (width, height))
            image = image.convert(_MODES[channels])
            if (height, width) != (-1, -1) and image.size != (width, height):
                image = image.resize((size[0] if width == -1 else width, size[1] if height == -1 else height))
            array = np.asarray(image)
    except Image.DecompressionBombError:
        raise _too_large(port, most_pixels) from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise HttpError(400, f"The input {port.name!r} has an image that is neither JPEG nor PNG, or broken.") from None
    if size[0] * size[1] > most_pixels:
        raise _too_large(port, most_pixels)
    array = array.reshape(*array.shape[:2], channels)
    return array if axes == (1, 2, 3) else array.transpose(2, 0, 1)


def _too_large(port: Port, most_pixels: int) -> HttpError:
    return HttpError(400, f"The input {port.name!r} has an image of more than {most_pixels:,} pixels (--max-pixels).")


def from_base64(port: Port, text: Any) -> bytes:
    """Return the bytes of a base64 text."""
    if type(text) is not str:
        raise HttpError(400, f"The input {port.name!r} takes images as base64 texts.")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise HttpError(400, f"The input {port.name!r} has a text that is not base64.") from None
