"""Post-training quantisation to int8 by NNCF, from rows that look like those to come."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.backends.openvino.files import ModelFiles
from orca.backends.openvino.reading import core, first_line
from orca.backends.openvino.spec import OpenvinoSpec
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.tree import row_count

PRESETS = ("mixed", "performance")


def quantize(spec: OpenvinoSpec, features: Any, preset: str, options: dict[str, Any]) -> OpenvinoSpec:
    """The same model with int8 weights and activations, whose ranges are those that the features cause."""
    if importlib.util.find_spec("nncf") is None:
        raise MissingPackageError(
            'quantize needs NNCF, which is not installed. Run: pip install "orca-estimator[nncf]"'
        )
    if preset not in PRESETS:
        raise ArgumentError(f"preset={preset!r}: expected one of {', '.join(PRESETS)}.")
    if not row_count(features):
        raise DataError("calibration_data= has no rows. Give some hundred that look like those to come.")
    # One row at a time if the model allows it, as each request is measured by itself.
    requests = list(spec.requests(features, 1))
    with _quiet():
        import nncf

        model = core().read_model(str(spec.files.path(spec.cache)))
        data = nncf.Dataset(requests, lambda arrays: dict(enumerate(arrays)))
        try:
            made = nncf.quantize(
                model,
                data,
                preset=nncf.QuantizationPreset(preset),
                subset_size=len(requests),
                **options,
            )
        except TypeError as error:
            raise ArgumentError(f"quantize: {error}") from error
        except RuntimeError as error:
            raise DataError(f"NNCF cannot quantise this model: {first_line(error)}.") from error
    return OpenvinoSpec(
        ModelFiles.of(made, spec.cache), spec.inputs, spec.outputs, dict(spec.config), spec.form, f"{spec.origin}, int8"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """NNCF draws progress bars, logs each step and, like OpenVINO's tools, reports its use; none of it is wanted."""
    os.environ.setdefault("NNCF_TELEMETRY_DISABLED", "1")
    logger = logging.getLogger("nncf")
    level = logger.level
    with contextlib.redirect_stdout(io.StringIO()):
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
