"""The compiled model of one process, with several requests in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from orca.backends.base import Outcome, Replica, State
from orca.backends.openvino import settings
from orca.backends.openvino.core import core, first_line
from orca.backends.openvino.files import locked
from orca.backends.openvino.ports import Array
from orca.backends.openvino.queue import Queue
from orca.backends.openvino.spec import OpenvinoSpec, Requests
from orca.errors import ArgumentError, DataError
from orca.shards.feed import Batch

ONLY_PREDICTS = "OpenVINO only predicts: {what}() is not supported. Train with from_torch or from_keras."


def refuse(what: str) -> NoReturn:
    """Raise an error which says that this backend only predicts."""
    raise ArgumentError(ONLY_PREDICTS.format(what=what))


class OpenvinoReplica(Replica):
    """Runs the model; cannot be trained."""

    def __init__(self, spec: OpenvinoSpec, threads: int) -> None:
        self._spec = spec
        self.compiled = compiled(spec, threads)
        self._queue = Queue(self.compiled, spec.config.get("num_requests"))

    def predict_step(self, features: Any) -> Any:
        return next(iter(self.predict_stream([features])))

    def predict_stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs of each batch; the requests of all batches share one queue."""
        spec = self._spec
        pending: list[Requests] = []

        def all_requests() -> Iterator[list[Array]]:
            for features in batches:
                requests = spec.requests(features)
                pending.append(requests)
                yield from requests

        done: list[list[Array]] = []
        for outputs in self._run(all_requests()):
            done.append(outputs)
            if len(done) == len(pending[0]):
                yield self._join(done, pending.pop(0))
                done = []

    def _run(self, requests: Iterator[list[Array]]) -> Iterator[list[Array]]:
        try:
            yield from self._queue.run(requests)
        except RuntimeError as error:
            raise DataError(f"OpenVINO cannot run {self._spec.origin!r} on these rows: {first_line(error)}.") from error

    def _join(self, done: list[list[Array]], requests: Requests) -> Any:
        """Join the outputs of a batch's requests, without the rows that padded a request."""
        joined = []
        for port, parts in zip(self._spec.outputs, zip(*done, strict=True), strict=True):
            if requests.nested:
                joined.append(np.stack(parts))
                continue
            unpadded = []
            for part, length in zip(parts, requests.lengths, strict=True):
                sent = self._spec.fixed_batch or length
                if part.ndim == 0 or part.shape[0] != sent:
                    raise DataError(
                        f"The output {port} gave shape {list(part.shape)} for {sent} row{'s' * (sent > 1)} of input: "
                        "predictions need one row for each. To get the full output of each request, pass an array of "
                        "whole requests, such as data[:, None] for requests of one row."
                    )
                unpadded.append(part[:length])
            rows = unpadded[0] if len(unpadded) == 1 else np.concatenate(unpadded)
            joined.append(rows if requests.inner is None else rows.reshape(-1, requests.inner, *rows.shape[1:]))
        return self._spec.arranged(joined)

    def predict_nothing(self, features: Any) -> Any:
        return self._spec.blank(features)

    def train_step(self, batch: Batch, want_output: bool) -> Outcome:
        refuse("fit")

    def evaluate_step(self, data: Any, want_output: bool) -> Outcome:
        refuse("evaluate")

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass

    def learning_rate(self) -> float | None:
        return None


def compiled(spec: OpenvinoSpec, threads: int) -> Any:
    """Compile the model for this process; later processes of a host load the result from its cache."""
    device = settings.device(spec.config)
    folder = spec.files.folder(spec.cache)
    properties = {"CACHE_DIR": str(folder), **settings.properties(spec.config, threads)}
    try:
        with locked(folder):
            return core().compile_model(str(spec.files.path(spec.cache)), device, properties)
    except RuntimeError as error:
        devices = ", ".join(core().available_devices)
        if device.partition(":")[0].partition(".")[0] not in {*core().available_devices, "AUTO", "HETERO", "BATCH"}:
            raise ArgumentError(
                f"config has device={device!r}, which is not on this machine. It has: {devices}."
            ) from error
        raise ArgumentError(f"OpenVINO cannot compile {spec.origin!r} for {device}: {first_line(error)}.") from error
