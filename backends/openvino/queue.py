"""Batches through a compiled model, as many at once as it likes, with results in the order of the batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino

Array = np.ndarray[Any, Any]
_SPARE = 4
"""Sets of requests that wait for the next run; each has memory for its inputs and outputs."""
_AHEAD = 2
"""Requests beyond those that the model computes at once, so that none of its streams waits for Python."""


class Queue:
    """Requests that take turns: the oldest is waited for, read and started again with the next batch.

    OpenVINO's AsyncInferQueue calls Python from its own threads whenever a request ends, and starts no more requests
    than the model computes at once; each stream then stands still until Python has had its turn. Here more of them
    wait than work, and one thread does all that is Python. Each run in flight has requests of its own: several
    threads, or several half-done iterators of one thread, cannot share them.
    """

    def __init__(self, compiled: Any, requests: int | None = None) -> None:
        self._compiled = compiled
        self._size = requests or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) + _AHEAD
        self._free: list[list[Any]] = []

    def __len__(self) -> int:
        return self._size

    def run(self, batches: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """The outputs of each batch; the next batches are made while earlier ones are computed."""
        idle = self._taken()
        busy: deque[tuple[Any, Sequence[Array]]] = deque()
        try:
            for inputs in batches:
                done = None
                if len(busy) == self._size:
                    request, _ = busy.popleft()
                    done = _outputs(request)
                else:
                    request = idle.pop() if idle else self._compiled.create_infer_request()
                for place, array in enumerate(inputs):
                    request.set_input_tensor(place, openvino.Tensor(_writable(array), shared_memory=True))
                request.start_async()
                # OpenVINO reads the arrays where they are: they have to live until the request is done.
                busy.append((request, inputs))
                if done is not None:
                    yield done
            while busy:
                request, _ = busy.popleft()
                done = _outputs(request)
                idle.append(request)
                yield done
        finally:
            # Nothing may still be read when the arrays are given up; a request that failed is not used again.
            idle += [request for request, _ in busy if _rested(request)]
            if len(self._free) < _SPARE:
                self._free.append(idle)

    def _taken(self) -> list[Any]:
        try:
            return self._free.pop()
        except IndexError:
            return []


def _outputs(request: Any) -> list[Array]:
    """What a request has found, once it is done; its own memory is used again for the next batch."""
    request.wait()
    return [tensor.data.copy() for tensor in request.output_tensors]


def _rested(request: Any) -> bool:
    try:
        request.wait()
    except RuntimeError:
        return False
    return True


class _Memory:
    """The memory of an array for numpy, without the mark that it is only for reading."""

    def __init__(self, array: Array) -> None:
        self._array = array
        told = dict(array.__array_interface__)
        told["data"] = (told["data"][0], False)
        self.__array_interface__ = told


def _writable(array: Array) -> Array:
    """The same memory as an array that OpenVINO reads where it is: it copies those that are marked as read-only.

    It never writes to inputs.
    """
    if array.flags.writeable or array.dtype.kind not in "fiub" or not array.size:
        return array
    return np.asarray(_Memory(array))
