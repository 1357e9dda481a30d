"""Post-training quantization to int8 by NNCF, calibrated with representative rows."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from orca.backends.openvino import settings
from orca.backends.openvino.core import core, first_line
from orca.backends.openvino.files import ModelFiles
from orca.backends.openvino.spec import OpenvinoSpec
from orca.core.arguments import check_choice
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.tree import row_count

PRESETS = ("mixed", "performance")


def quantize(spec: OpenvinoSpec, features: Any, preset: str, options: dict[str, Any]) -> OpenvinoSpec:
    """Quantize the model to int8; the features determine the ranges of the activations."""
    if importlib.util.find_spec("nncf") is None:
        raise MissingPackageError(
            'quantize needs NNCF, which is not installed. Run: pip install "orca-estimator[nncf]"'
        )
    check_choice("preset", preset, PRESETS)
    settings.check(spec.config)
    if not row_count(features):
        raise DataError("calibration_data= has no rows. Pass a few hundred representative rows.")
    # NNCF calibrates per request, so each has one row if the model allows it.
    requests = list(spec.requests(features, 1))
    with _quiet():
        import nncf

        model = core().read_model(str(spec.files.path(spec.cache)))
        data = nncf.Dataset(requests, lambda arrays: dict(enumerate(arrays)))
        try:
            quantized = nncf.quantize(
                model,
                data,
                preset=nncf.QuantizationPreset(preset),
                subset_size=len(requests),
                **options,
            )
        except TypeError as error:
            raise ArgumentError(f"quantize: {error}") from error
        except RuntimeError as error:
            raise DataError(f"NNCF cannot quantize this model: {first_line(error)}.") from error
    files = ModelFiles.of(quantized, spec.cache)
    return replace(spec, files=files, config=dict(spec.config), origin=f"{spec.origin}, int8")


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable NNCF's progress bars, logging and usage reports."""
    os.environ.setdefault("NNCF_TELEMETRY_DISABLED", "1")
    logger = logging.getLogger("nncf")
    level = logger.level
    with contextlib.redirect_stdout(io.StringIO()):
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
