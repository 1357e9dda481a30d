"""Batches through a compiled model, as many at once as it likes, with results in the order of the batches."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino

Array = np.ndarray[Any, Any]


class _Slot:
    """A request on its way: its inputs, which have to live until it is done, and then its outputs."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: Sequence[Array]) -> None:
        self.inputs: Sequence[Array] | None = inputs
        self.outputs: list[Array] | None = None


class Queue:
    """OpenVINO's AsyncInferQueue with the order of results kept."""

    def __init__(self, compiled: Any, requests: int | None = None) -> None:
        # Without a number OpenVINO asks the device for its optimum.
        self._queue = openvino.AsyncInferQueue(compiled, requests or 0)
        self._queue.set_callback(_done)

    def __len__(self) -> int:
        return len(self._queue)

    def run(self, batches: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """The outputs of each batch; the next batches are made while earlier ones are computed."""
        pending: deque[_Slot] = deque()
        try:
            for inputs in batches:
                slot = _Slot(inputs)
                # Arrays of the right kind are read where they are. Blocks until a request is free.
                self._queue.start_async(dict(enumerate(inputs)), slot, share_inputs=True)
                pending.append(slot)
                while pending and pending[0].outputs is not None:
                    yield pending.popleft().outputs or []
            self._queue.wait_all()
            while pending:
                yield pending.popleft().outputs or []
        finally:
            if pending:
                # A batch failed, or nobody wants the rest: no request may go on with memory that is given up.
                with contextlib.suppress(RuntimeError):
                    self._queue.wait_all()


def _done(request: Any, slot: _Slot) -> None:
    # The request's own memory is used again for the next batch.
    slot.outputs = [tensor.data.copy() for tensor in request.output_tensors]
    slot.inputs = None
