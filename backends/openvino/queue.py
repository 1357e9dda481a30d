"""Runs batches through a compiled model, several at once, and returns the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino

Array = np.ndarray[Any, Any]
_SPARE = 4
"""The maximum number of idle request sets kept for later runs; each holds memory for inputs and outputs."""
_AHEAD = 2
"""Requests beyond the model's optimal number, so that none of its streams waits for Python."""


class Queue:
    """A ring of requests: the oldest is awaited, read and restarted with the next batch.

    OpenVINO's AsyncInferQueue calls Python from its own threads whenever a request ends, and starts no more requests
    than the model computes at once, so each stream idles until Python has run. Here some requests are always queued,
    and all Python code runs on one thread. Every run has its own requests, as several threads, or several unfinished
    iterators of one thread, cannot share them.
    """

    def __init__(self, compiled: Any, requests: int | None = None) -> None:
        self._compiled = compiled
        self._size = requests or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) + _AHEAD
        self._free: list[list[Any]] = []

    def __len__(self) -> int:
        return self._size

    def run(self, batches: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """Yield the outputs of each batch; later batches are prepared while earlier ones are computed."""
        idle = self._idle_requests()
        busy: deque[tuple[Any, Sequence[Array]]] = deque()
        try:
            for inputs in batches:
                done = None
                if len(busy) == self._size:
                    request, _ = busy.popleft()
                    done = _outputs(request)
                else:
                    request = idle.pop() if idle else self._compiled.create_infer_request()
                for index, array in enumerate(inputs):
                    request.set_input_tensor(index, openvino.Tensor(writable(array), shared_memory=True))
                request.start_async()
                # OpenVINO reads the arrays in place: they must stay alive until the request is done.
                busy.append((request, inputs))
                if done is not None:
                    yield done
            while busy:
                request, _ = busy.popleft()
                done = _outputs(request)
                idle.append(request)
                yield done
        finally:
            # No request may still read the arrays when they are released; failed requests are not reused.
            idle += [request for request, _ in busy if _finished(request)]
            if len(self._free) < _SPARE:
                self._free.append(idle)

    def _idle_requests(self) -> list[Any]:
        try:
            return self._free.pop()
        except IndexError:
            return []


def _outputs(request: Any) -> list[Array]:
    """Wait for a request and copy its outputs, as its memory is reused for the next batch."""
    request.wait()
    return [tensor.data.copy() for tensor in request.output_tensors]


def _finished(request: Any) -> bool:
    try:
        request.wait()
    except RuntimeError:
        return False
    return True


class _Memory:
    """The memory of an array without its read-only flag."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def writable(array: Array) -> Array:
    """Return the same memory without its read-only flag: OpenVINO copies read-only arrays.

    It never writes to inputs.
    """
    if array.flags.writeable or array.dtype.kind not in "fiub" or not array.size:
        return array
    return np.asarray(_Memory(array))
