"""Batches through a compiled model, as many at once as it likes, with results in the order of the batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino

Array = np.ndarray[Any, Any]
_SPARE = 4
"""Queues that wait for the next run; each has memory for its requests."""


class _Slot:
    """A request on its way: its inputs, which have to live until it is done, and then its outputs."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: Sequence[Array]) -> None:
        self.inputs: Sequence[Array] | None = inputs
        self.outputs: list[Array] | None = None


class Queue:
    """OpenVINO's AsyncInferQueue with the order of results kept, and one for each run in flight.

    Several threads, or several half-done iterators of one thread, cannot share one: each would wait for the
    other's requests.
    """

    def __init__(self, compiled: Any, requests: int | None = None) -> None:
        self._compiled = compiled
        # Without a number OpenVINO asks the device for its optimum.
        self._requests = requests or 0
        self._free = [self._made()]
        self._size = len(self._free[0])

    def __len__(self) -> int:
        return self._size

    def run(self, batches: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """The outputs of each batch; the next batches are made while earlier ones are computed."""
        try:
            queue = self._free.pop()
        except IndexError:
            queue = self._made()
        pending: deque[_Slot] = deque()
        well = False
        try:
            for inputs in batches:
                slot = _Slot(inputs)
                # Arrays of the right kind are read where they are. Blocks until a request is free.
                queue.start_async(dict(enumerate(inputs)), slot, share_inputs=True)
                pending.append(slot)
                while pending and pending[0].outputs is not None:
                    yield pending.popleft().outputs or []
            queue.wait_all()
            well = True
            while pending:
                yield pending.popleft().outputs or []
        except GeneratorExit:
            well = True  # nobody wants the rest
            raise
        finally:
            # One that failed would tell its old error to every later run.
            if _rested(queue) and well and len(self._free) < _SPARE:
                self._free.append(queue)

    def _made(self) -> Any:
        queue = openvino.AsyncInferQueue(self._compiled, self._requests)
        queue.set_callback(_done)
        return queue


def _rested(queue: Any) -> bool:
    """Wait until no request works with memory that is about to be given up; say whether all of them ended well."""
    well = True
    for request in queue:
        try:
            request.wait()
        except RuntimeError:
            well = False
    return well


def _done(request: Any, slot: _Slot) -> None:
    # The request's own memory is used again for the next batch.
    slot.outputs = [tensor.data.copy() for tensor in request.output_tensors]
    slot.inputs = None
