"""The model of `from_openvino`: read and checked on the driver, sent to the workers as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orca.backends.openvino import settings
from orca.backends.openvino.files import ModelFiles, default_cache
from orca.backends.openvino.ports import Array, Fit, Port, fit_to, take_inputs, with_layout
from orca.backends.openvino.reading import convert, layout_of, ports_of, prepared, read, reshaped, typed
from orca.core.arguments import check_example, check_path, optional
from orca.errors import ArgumentError, DataError
from orca.shards.tree import leaves, row_count, tree_map

_REQUEST_BYTES = 4 << 20
"""Without a batch size, a request holds about as much input; more rows only take more memory."""


@dataclass(frozen=True)
class OpenvinoSpec:
    """A model in OpenVINO's own format, with its inputs and outputs in order."""

    files: ModelFiles
    inputs: list[Port]
    outputs: list[Port]
    config: dict[str, Any] = field(default_factory=dict)
    form: Any = None
    """The structure of the outputs, with their numbers as leaves; None for one array, or a dict by name."""
    origin: str = "model="
    """The argument or file that the model comes from, for errors."""

    def travels(self) -> dict[str, object]:
        return {}

    @classmethod
    def make(
        cls,
        model_path: Any = None,
        model: Any = None,
        config: Mapping[str, Any] | None = None,
        layout: Any = None,
        shape: Any = None,
        example: Any = None,
    ) -> OpenvinoSpec:
        """Read or convert the model."""
        if (model_path is None) == (model is None):
            raise ArgumentError("from_openvino needs either a file (model_path=) or a live model (model=).")
        optional(check_example)("example", example)
        chosen = dict(config or {})
        settings.check(chosen)
        cache = cache_of(chosen)
        if model_path is not None:
            path = check_path("model_path", model_path, "the path of a file; a live model is model=")
            network = read(path, shape, example)
            origin = path
        else:
            path, origin = "", "model="
            network = convert(model, shape, example)
        network = prepared(typed(reshaped(network, shape)), chosen)
        unchanged = shape is None and chosen.get("mean") is None and chosen.get("scale") is None
        plain = path.lower().endswith(".xml") and "://" not in path and unchanged
        files = ModelFiles(Path(path).absolute()) if plain else ModelFiles.of(network, cache)
        return cls.of(network, files, chosen, layout, origin)

    @classmethod
    def of(
        cls, model: Any, files: ModelFiles, config: dict[str, Any], layout: Any = None, origin: str = "model="
    ) -> OpenvinoSpec:
        """Return the spec of a model that has been read."""
        inputs = with_layout(ports_of(model.inputs, "input"), layout, [layout_of(port) for port in model.inputs])
        return cls(files, inputs, ports_of(model.outputs, "output"), config, origin=origin)

    @property
    def cache(self) -> Path:
        """The folder of this host for compiled models."""
        return cache_of(self.config)

    @property
    def fixed_batch(self) -> int | None:
        """The number of rows of a request, if the model fixes it."""
        sizes = {port.shape[0] for port in self.inputs if port.shape} - {None}
        return next(iter(sizes)) if len(sizes) == 1 else None

    def batch_size(self, requested: int | None) -> int:
        """Return the number of rows processed at once: as requested, rounded up if the model fixes its batch."""
        if self.fixed_batch is not None:
            return -(-(requested or 1) // self.fixed_batch) * self.fixed_batch
        if requested is not None:
            return requested
        row = sum(
            int(np.prod([side or 1 for side in port.shape[1:]])) * np.dtype(port.dtype).itemsize for port in self.inputs
        )
        fitting = max(1, _REQUEST_BYTES // max(1, row))
        return min(256, 1 << (fitting.bit_length() - 1))

    def fits(self, features: Any) -> tuple[list[Array], list[Fit]]:
        """Return the arrays for the inputs and how each fits, or raise an error that names the input."""
        arrays = [np.asarray(array) for array in take_inputs(features, self.inputs)]
        fits = [fit_to(port, array.shape, array.dtype) for port, array in zip(self.inputs, arrays, strict=True)]
        if len({(fit.nested, fit.stacked) for fit in fits}) > 1:
            raise DataError(
                "Some inputs come as rows and some as whole batches: "
                + ", ".join(f"{port} from {array.shape}" for port, array in zip(self.inputs, arrays, strict=True))
            )
        return arrays, fits

    def requests(self, features: Any, size: int | None = None) -> Requests:
        """The rows as requests of `size` rows, or of as many as there are; a fixed batch of the model goes first."""
        arrays, fits = self.fits(features)
        inner = arrays[0].shape[1] if fits[0].stacked else None
        if inner is not None:
            arrays = [array.reshape(-1, *array.shape[2:]) for array in arrays]
        rows = row_count(arrays)
        # An entry of its own for each request, or as many rows as the model wants at once.
        return Requests(self, arrays, fits, rows, 1 if fits[0].nested else self.fixed_batch or size or rows, inner)

    def arranged(self, outputs: list[Any]) -> Any:
        """Arrange outputs as the user receives them: one array, a dict by name, or the structure `form`."""
        if self.form is not None:
            return tree_map(lambda place: outputs[place], self.form)
        if len(outputs) == 1:
            return outputs[0]
        if all(port.named for port in self.outputs):
            return {port.name: output for port, output in zip(self.outputs, outputs, strict=True)}
        return tuple(outputs)

    def blank(self, features: Any) -> Any:
        """Return outputs without rows, for features without rows; axes of open length count as one."""
        nested = False
        if features is not None and any(leaf.ndim > 1 for _, leaf in leaves(features)):
            nested = any(fit.nested or fit.stacked for fit in self.fits(features)[1])
        start = 0 if nested else 1
        return self.arranged(
            [np.empty((0, *(1 if s is None else s for s in port.shape[start:])), port.dtype) for port in self.outputs]
        )

    def __deepcopy__(self, memo: Any) -> OpenvinoSpec:
        return self


@dataclass(frozen=True)
class Requests:
    """Rows on their way into the model, request by request."""

    spec: OpenvinoSpec
    arrays: list[Array]
    fits: list[Fit]
    rows: int
    size: int
    inner: int | None = None
    """The number of rows in each entry of the data, if it has several."""

    @property
    def nested(self) -> bool:
        """Whether each entry of the data is a whole request."""
        return self.fits[0].nested

    @property
    def lengths(self) -> list[int]:
        """The number of rows in each request."""
        return [min(self.size, self.rows - low) for low in range(0, self.rows, self.size)]

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def __iter__(self) -> Iterator[list[Array]]:
        ports = self.spec.inputs
        for low in range(0, self.rows, self.size):
            cut = [array[low] if self.nested else array[low : low + self.size] for array in self.arrays]
            ready = [fit(part, port.dtype) for fit, part, port in zip(self.fits, cut, ports, strict=True)]
            yield ready if self.nested else [_filled(array, self.spec.fixed_batch) for array in ready]


def _filled(array: Array, size: int | None) -> Array:
    """Rows up to a fixed number: the last one again, as any other value could be one that the model does not take."""
    missing = 0 if size is None else size - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array


def cache_of(config: Mapping[str, Any]) -> Path:
    """Orca's own folder in the one that the config names, which may hold other things too; else that of the user."""
    folder = config.get("cache_dir")
    return Path(folder).absolute() / "orca-openvino" if folder else default_cache()
