"""One compiled model: runs IR with OpenVINO, and only IR, as everything else in a store may contain programs."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from orca.backends.openvino.core import core, first_line
from orca.backends.openvino.queue import writable
from orca.backends.openvino.settings import properties
from orca.errors import DataError
from orca.serving.checks import shown
from orca.store.values import Port, Signature

Array = np.ndarray[Any, Any]
log = logging.getLogger("orca.serving")
_WARM_RUNS = 3
_TOLERANCE = 1e-4
_PROGRAMS = {"If", "Loop", "TensorIterator"}


class Engine:
    """A model in memory with one infer request: `run` must not be called by two threads at once."""

    def __init__(self, path: str, signature: Signature, threads: int = 1) -> None:
        self.signature = signature
        check_files(path)
        try:
            model = core().read_model(path)
            config = properties({"performance_hint": "latency", "num_threads": threads}, threads)
            self._compiled = core().compile_model(model, "CPU", config)
        except RuntimeError as error:
            raise DataError(f"OpenVINO cannot load {Path(path).name}: {first_line(error)}.") from None
        programs = {node.get_type_name() for node in model.get_ops()} & _PROGRAMS
        self.is_steady = not programs and self.takes_rows and not any(-1 in port.shape[1:] for port in signature.inputs)
        """Whether the time for a row does not depend on its values or its length."""
        _compare(self._compiled.inputs, signature.inputs, "inputs")
        _compare(self._compiled.outputs, signature.outputs, "outputs")
        self._request = self._compiled.create_infer_request()
        self._outputs = range(len(signature.outputs))
        self.row_seconds = 0.0
        """The time that one row took of late."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the outputs for arrays whose shapes and types have been checked."""
        started = time.perf_counter()
        request = self._request
        try:
            # Never `request.infer`: OpenVINO 2026.4 drops every error of that call, and the outputs are then those of
            # the previous request, which was another client's. `wait` raises it.
            for index, array in enumerate(arrays):
                request.set_input_tensor(index, openvino.Tensor(writable(array), shared_memory=True))
            request.start_async()
            request.wait()
            outputs = [request.get_output_tensor(index).data.copy() for index in self._outputs]
        except Exception:
            self._request = self._compiled.create_infer_request()  # a failed request is not used again
            raise
        seconds = (time.perf_counter() - started) / max(1, len(arrays[0]) if arrays and arrays[0].ndim else 1)
        self.row_seconds += 0.2 * (seconds - self.row_seconds)
        return outputs

    @property
    def takes_rows(self) -> bool:
        """Whether the first axis of all inputs and outputs is a number of rows that may differ."""
        ports = (*self.signature.inputs, *self.signature.outputs)
        return bool(self.signature.inputs) and all(port.shape and port.shape[0] == -1 for port in ports)

    def warm(self) -> bool:
        """Compute a first result, measure the time, and return whether rows can be joined."""
        inputs = self.signature.inputs
        if any(-1 in port.shape[1:] for port in inputs):
            return False  # nobody knows which lengths work, nor whether padding matters
        try:
            for _ in range(_WARM_RUNS):
                started = time.perf_counter()
                self.run([_sample(port, 1) for port in inputs])
                self.row_seconds = time.perf_counter() - started
            return self.takes_rows and self._rows_are_independent()
        except RuntimeError as error:
            # The store has computed its example with this model, so it may only dislike random numbers.
            log.warning("The model fails on random numbers, so its requests are not joined: %s", first_line(error))
            self.is_steady = False
            return False

    def _rows_are_independent(self) -> bool:
        """Whether rows give the same result alone and together; otherwise a client would see another's rows."""
        together = [_sample(port, 3) for port in self.signature.inputs]
        joined = self.run(together)
        single = [self.run([array[row : row + 1] for array in together]) for row in range(3)]
        return all(
            len(whole) == 3
            and np.allclose(
                whole, np.concatenate([part[index] for part in single]), _TOLERANCE, _TOLERANCE, equal_nan=True
            )
            for index, whole in enumerate(joined)
        )


def check_files(path: str) -> None:
    """Refuse an IR with a link in place of a file: it may lead out of the store."""
    for name in (Path(path), Path(path).with_suffix(".bin")):
        if not stat.S_ISREG(os.lstat(name).st_mode):
            raise DataError(f"{name.name} is not a regular file, so it is not opened.")


def _sample(port: Port, rows: int) -> Array:
    shape = tuple(rows if side == -1 else side for side in port.shape)
    if np.dtype(port.dtype).kind != "f":
        return np.zeros(shape, port.dtype)  # an index into a table: 0 exists
    return np.random.default_rng(0).standard_normal(shape).astype(port.dtype)


def _compare(nodes: Sequence[Any], ports: Sequence[Port], what: str) -> None:
    """Compare the compiled model with its signature, which all checks of requests rely on."""
    shapes = [tuple(side.get_length() if side.is_static else -1 for side in node.partial_shape) for node in nodes]
    kinds = [str(node.element_type.to_dtype()) for node in nodes]
    if [*zip(kinds, shapes, strict=True)] != [(str(np.dtype(port.dtype)), tuple(port.shape)) for port in ports]:
        model = ", ".join(f"{kind} {shown(shape)}" for kind, shape in zip(kinds, shapes, strict=True))
        stored = ", ".join(f"{port.dtype} {shown(port.shape)}" for port in ports)
        raise DataError(f"The {what} of the IR are {model}, those of its signature are {stored}.")
