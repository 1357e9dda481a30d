"""Learned states as files: saved estimators and checkpoints, weights alone, and a framework's own formats."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from orca.backends.base import State
from orca.backends.worker.position import Position
from orca.callbacks import Callback
from orca.core.arguments import check_count, check_example, check_mapping, check_path, check_text, optional
from orca.errors import ArgumentError, DataError, NotFittedError, OrcaError
from orca.runs import saved_states
from orca.runs.checkpoints import checkpoints, latest
from orca.runs.values import Learned, Setup
from orca.shards.tree import Tree, tree_map

_log = logging.getLogger("orca")


def about(setup: Setup, learned: Learned) -> dict[str, Any]:
    """Return what a saved state says of the estimator that it comes from."""
    return {"backend": setup.backend.name, "framework": setup.backend.framework.name, "seed": learned.seed}


def model_of(setup: Setup, learned: Learned) -> Any:
    """Return the framework's own model, with the learned weights."""
    return setup.backend.framework.model(setup.spec, learned.state, learned.seed)


def fitted_state(learned: Learned) -> State:
    """Return the state, or raise if there is none yet."""
    if learned.state is None:
        raise NotFittedError("There are no weights yet: call fit or load first.")
    return learned.state


def save(setup: Setup, learned: Learned, path: str) -> str:
    """Write weights, optimizer and position to a folder, or the model to a file of its framework."""
    path, framework = check_path("path", path), setup.backend.framework
    own_format = path.endswith(framework.file_suffixes)
    if framework.inference_only and not own_format:
        raise ArgumentError(f"path={path!r}: a model of this kind is saved as {', '.join(framework.file_suffixes)}.")
    if learned.state is None and not framework.inference_only:
        raise NotFittedError("There is nothing to save yet: call fit or load first.")
    if learned.state is None or own_format:
        framework.write_model(model_of(setup, learned), path)
        return path
    position = None if learned.position is None else learned.position.as_dict()
    state = {**learned.state, "position": position, "example": learned.example}
    saved_states.save(path, {**about(setup, learned), "epoch": learned.epoch, "step": learned.step}, state)
    return path


def deliver(setup: Setup, learned: Learned) -> None:
    """Give the framework what was learned, for objects of the user that should have it."""
    if learned.state is not None:
        setup.backend.framework.learned(setup.spec, learned.state)


def save_tf_checkpoint(setup: Setup, learned: Learned, path: str) -> str:
    """Write the variables as a checkpoint of TensorFlow."""
    return setup.backend.framework.write_checkpoint(fitted_state(learned), check_path("path", path))


def load_tf_checkpoint(setup: Setup, learned: Learned, path: str) -> Learned:
    """Return the variables of a checkpoint of TensorFlow."""
    state = setup.backend.framework.read_checkpoint(setup.spec, check_path("path", path))
    return learned.with_state(state, position=None)


def session_of(setup: Setup, learned: Learned) -> Any:
    """Return the session of a TensorFlow graph."""
    return setup.backend.framework.session(setup.spec, learned.state, learned.seed)


def save_weights(setup: Setup, learned: Learned, path: str) -> str:
    """Write the weights alone."""
    path, state = check_path("path", path), fitted_state(learned)
    if path.endswith(setup.backend.framework.file_suffixes):
        setup.backend.framework.write_model(model_of(setup, learned), path)
    else:
        saved_states.save(path, {**about(setup, learned), "epoch": 0, "step": 0}, {"model": state["model"]})
    return path


def load(setup: Setup, learned: Learned, path: str, custom_objects: Mapping[str, Any] | None = None) -> Learned:
    """Return what `save` or a checkpoint holds."""
    path, framework = check_path("path", path), setup.backend.framework
    if custom_objects is not None:
        check_mapping("custom_objects", custom_objects)
    if path.endswith(framework.file_suffixes):
        state = framework.read_model(setup.spec, path, custom_objects)
        return learned.with_state(state, position=None, example=None)
    facts, state = saved_states.load(path)
    if facts.get("framework") != framework.name:
        source = facts.get("framework")
        raise DataError(f"path={path!r} was saved from {source}; this estimator is for {framework.name}.")
    try:
        position = state.pop("position", None)
        loaded = learned.with_state(
            state,
            example=state.pop("example", None),
            position=None if position is None else Position.from_dict(position),
            epoch=int(facts["epoch"]),
            step=int(facts.get("step", 0)),
            # The order of further epochs depends on the seed: resuming exactly needs the one that was used.
            seed=int(facts["seed"]),
        )
    except Exception as error:
        raise DataError(f"path={path!r} is damaged: {type(error).__name__}: {error}") from error
    _check_fits(setup, loaded, path)
    return loaded


def _check_fits(setup: Setup, learned: Learned, path: str) -> None:
    """Raise if a loaded state belongs to another model, as far as that can be known without data."""
    try:
        setup.backend.framework.model(setup.spec, learned.state, learned.seed)
    except OrcaError:
        return  # a model that has to see data before it can be built
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"path={path!r} holds the state of another model: {reason}") from error


def load_weights(setup: Setup, learned: Learned, path: str) -> Learned:
    """Return the weights of a file or folder, with everything else unchanged."""
    path, framework = check_path("path", path), setup.backend.framework
    own_format = path.endswith(framework.file_suffixes)
    state = framework.read_model(setup.spec, path, None) if own_format else saved_states.load(path)[1]
    rest = {key: value for key, value in (learned.state or {}).items() if key != "model"}
    return learned.with_state({"model": state["model"], **rest})


def newest(path: str, version: int | None, argument: str = "path") -> str:
    """Return the newest checkpoint below a folder, or the one of a step; raise if there is none."""
    path = check_path(argument, path)
    checkpoint = latest(path, None if version is None else check_count("version", version, least=0))
    if checkpoint is None:
        raise ArgumentError(f"{argument}={path!r} has no checkpoint in it.")
    return checkpoint


def resumed(setup: Setup, learned: Learned, resume: bool | str) -> Learned:
    """Return the state that a run with ``resume=`` starts from."""
    if isinstance(resume, str):
        return load(setup, learned, newest(resume, None, "resume"))
    if not resume or setup.model_dir is None:
        return learned
    is_state = saved_states.exists(setup.model_dir)
    paths = [setup.model_dir] if is_state else list(checkpoints(setup.model_dir))
    for number, path in enumerate(paths):
        try:
            return load(setup, learned, path)
        except DataError as error:
            if number + 1 == len(paths):
                raise
            _log.warning("%s Resuming from the checkpoint before it.", error)
    return learned


def restore_callbacks(callbacks: tuple[Callback, ...], position: Position | None) -> None:
    """Give an estimator's own callbacks the states of a loaded position."""
    entries = [] if position is None else position.callbacks
    for callback in callbacks:
        states = [state for kind, state in entries if kind == type(callback).__name__]
        if states:
            callback.load_state(states[0])


def export(setup: Setup, learned: Learned, kind: str, path: str, example: Tree | None) -> str:
    """Write the model for other programs; return the path written."""
    kind, path = check_text("kind", kind, "the name of a format"), check_path("path", path)
    example = optional(check_example)("example", example)
    if example is None and learned.example is not None:
        example = blank(learned.example)
    framework = setup.backend.framework
    written = framework.export_state(setup.spec, learned.state, learned.seed, kind, path)
    if written is not None:
        return written
    if example is None and not framework.inference_only:
        raise NotFittedError("export needs the form of the inputs: give example= (a few rows), or fit first.")
    return framework.export(model_of(setup, learned), kind, path, example)


def blank(example: Tree) -> Tree:
    """Return two rows of zeros in the form of an example."""
    return tree_map(lambda leaf: np.zeros((2, *leaf.shape[1:]), leaf.dtype), example)
