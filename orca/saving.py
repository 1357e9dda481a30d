"""What an estimator has learned: it goes to files and comes back, as checkpoints or in a framework's own formats."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orca import checkpoint
from orca.errors import ArgumentError, DataError, NotFittedError
from orca.keeper import latest
from orca.shards.tree import tree_map

if TYPE_CHECKING:
    from typing import Self

    from orca.backends.base import Backend, Spec, State
    from orca.callbacks import LRScheduler


class Saving:
    """The half of an estimator that holds the model's state."""

    backend: Backend[Any]
    spec: Spec
    seed: int
    model_dir: str | None
    _epoch: int
    _step: int
    _version: int
    _owner: str
    _state: State | None
    _position: dict[str, Any] | None
    _example: Any
    _scheduler: LRScheduler | None

    def get_model(self) -> Any:
        """The model as an object of its framework, with the weights learned so far."""
        return self.backend.framework.model(self.spec, self._state, self.seed)

    def get_state_dict(self) -> dict[str, Any]:
        """The weights learned so far, in the framework's own form."""
        if self._state is None:
            raise NotFittedError("There are no weights yet: call fit or load first.")
        return self.backend.framework.state_dict(self._state)

    def export(self, kind: str, path: str, example: Any = None) -> str:
        """Write the model for other programs: "onnx", "openvino", "torchscript" or "exported_program".

        ``example`` is a few rows of input; without it rows in the form of the last fit's serve. Returns the path.
        """
        if example is None and self._example is not None:
            example = blank(self._example)
        if example is None and not self.backend.framework.inference_only:
            raise NotFittedError("export has to know the form of the inputs: give example= (a few rows), or fit first.")
        return self.backend.framework.export(self.get_model(), kind, str(path), example)

    def save(self, path: str) -> str:
        """Save what was learned (weights, optimizer, position) to a folder on any fsspec path; return the path.

        A path that ends like a file of the framework's own format (Keras: ``.keras``, ``.h5``; OpenVINO: ``.xml``)
        gets such a file.
        """
        path = os.fspath(path)
        if self.backend.framework.inference_only and not path.endswith(self.backend.framework.file_suffixes):
            raise ArgumentError(
                f"path={path!r}: a model of this kind is saved as {', '.join(self.backend.framework.file_suffixes)}."
            )
        if self._state is None and not self.backend.framework.inference_only:
            raise NotFittedError("There is nothing to save yet: call fit or load first.")
        if self._state is None or path.endswith(self.backend.framework.file_suffixes):
            self.backend.framework.write_model(self.get_model(), path)
            return path
        state = {**self._state, "position": self._position, "example": self._example}
        checkpoint.save(path, {**self._about(), "epoch": self._epoch, "step": self._step}, state)
        return path

    def save_checkpoint(self, path: str) -> str:
        """Save weights, optimizer and position; the same as `save`."""
        return self.save(path)

    def load_checkpoint(self, path: str) -> Self:
        """Take over weights, optimizer and position; the same as `load`."""
        return self.load(path)

    def save_weights(self, path: str) -> str:
        """Save the weights alone; return the path."""
        if self._state is None:
            raise NotFittedError("There are no weights yet: call fit or load first.")
        path = os.fspath(path)
        if path.endswith(self.backend.framework.file_suffixes):
            self.backend.framework.write_model(self.get_model(), path)
        else:
            checkpoint.save(path, {**self._about(), "epoch": 0, "step": 0}, {"model": self._state["model"]})
        return path

    def load_weights(self, path: str) -> Self:
        """Take over the weights alone, of a file or folder that `save` or `save_weights` made."""
        path = os.fspath(path)
        own = path.endswith(self.backend.framework.file_suffixes)
        state = self.backend.framework.read_model(self.spec, path, None) if own else checkpoint.load(path)[1]
        kept = {key: value for key, value in (self._state or {}).items() if key != "model"}
        self._hold({"model": state["model"], **kept})
        return self

    def load(self, path: str, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Take over what `save` or a checkpoint holds; return the estimator itself.

        ``custom_objects`` are the classes and functions that a Keras file only names.
        """
        path = os.fspath(path)
        if path.endswith(self.backend.framework.file_suffixes):
            self._hold(self.backend.framework.read_model(self.spec, path, custom_objects))
            self._position = self._example = None
            return self
        about, state = checkpoint.load(path)
        framework = self.backend.framework.name
        if about["framework"] != framework:
            raise DataError(f"path={path!r} was saved from {about['framework']}; this estimator is for {framework}.")
        self._position = state.pop("position", None)
        if self._scheduler is not None and self._position is not None:
            states = [state for kind, state in self._position["callbacks"] if kind == type(self._scheduler).__name__]
            if states:
                self._scheduler.load_state(states[0])
        self._example = state.pop("example", None)
        self._hold(state)
        self._epoch = int(about["epoch"])
        self._step = int(about.get("step", 0))
        # The order of the epochs to come depends on the seed: going on exactly needs the one that was used.
        self.seed = int(about["seed"])
        return self

    def _hold(self, state: State) -> None:
        """Have another state from now on."""
        self._state = state
        self._version += 1
        if "optimizer" not in state:
            # Warm ranks would train on with the optimizer they have, new ones with a fresh one.
            self._owner = uuid.uuid4().hex

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> Self:
        """Load the newest checkpoint below a folder, or with ``version`` the one of that step."""
        found = latest(path, version)
        if found is None:
            raise ArgumentError(f"path={str(path)!r} has no checkpoint in it.")
        return self.load(found)

    def _resume(self, resume: bool | str) -> dict[str, Any] | None:
        """Where to go on, after loading what has to be loaded; None to start a new epoch."""
        if resume is False or resume is None:
            return None
        if isinstance(resume, os.PathLike):
            resume = os.fspath(resume)
        if resume is not True and not isinstance(resume, str):
            raise ArgumentError(f"resume={resume!r}: expected True or the path of a checkpoint.")
        found = latest(self.model_dir) if resume is True and self.model_dir is not None else None
        if isinstance(resume, str):
            found = latest(resume)
            if found is None:
                raise ArgumentError(f"resume={resume!r} has no checkpoint in it.")
        if found is not None:
            self.load(found)
        return self._position

    def _about(self) -> dict[str, Any]:
        return {"backend": self.backend.name, "framework": self.backend.framework.name, "seed": self.seed}


def blank(example: Any) -> Any:
    """Two rows of zeros in the form of an example."""
    return tree_map(lambda leaf: np.zeros((2, *leaf.shape[1:]), leaf.dtype), example)
