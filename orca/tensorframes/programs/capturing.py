"""Finds out which kind of program a user passed, and captures it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.core.arguments import check_flag, shown, wrong
from orca.errors import ArgumentError
from orca.tensorframes.programs.base import Program
from orca.tensorframes.programs.functions import framework_of, inputs_of

_KINDS = "tensors of a TensorFlow graph, names of them with graph=, or a function of columns that returns a dict"


def capture(
    fetches: Any, graph: Any = None, feed_dict: Any = None, initial_variables: Any = True, sess: Any = None
) -> tuple[Program, dict[str, str]]:
    """Return the program, and the columns that `feed_dict` assigns to its inputs."""
    initial = check_flag("initial_variables", initial_variables)
    columns, constants = _feeds(feed_dict)
    if _is_tensors(fetches):
        from orca.tensorframes.programs.graphs import capture_tensors

        program: Program = capture_tensors(fetches, graph, constants, initial, sess)
        _check_inputs(program, [*columns, *constants])
        return program, columns
    if not callable(fetches) or isinstance(fetches, type):
        raise wrong("fetches", fetches, _KINDS)
    for name, value in (("graph", graph), ("sess", sess)):
        if value is not None:
            raise ArgumentError(f"{name}={shown(value)}: fetches= is a function, which is not part of a graph.")
    return _function(fetches, columns, constants), columns


def _function(function: Any, columns: Mapping[str, str], constants: Mapping[str, Any]) -> Program:
    framework = framework_of(function)
    if framework == "tensorflow":
        from orca.tensorframes.programs.graphs import TracedProgram

        return TracedProgram(function, columns, constants)
    from orca.tensorframes.programs.library import FunctionProgram, Library

    if framework == "torch":
        from orca.tensorframes.programs.torch_functions import TorchLibrary

        library: Library = TorchLibrary()
    else:
        from orca.tensorframes.programs.numpy_functions import NumpyLibrary

        library = NumpyLibrary()
    inputs = inputs_of(function, {**columns, **constants})
    return FunctionProgram(function, inputs, constants, library)


def _is_tensors(fetches: Any) -> bool:
    """Whether fetches are tensors or names, alone, in a list or in a dict; TensorFlow is not imported for it."""
    if isinstance(fetches, Mapping):
        return bool(fetches) and all(_is_tensor(one) for one in fetches.values())
    if isinstance(fetches, list | tuple):
        return bool(fetches) and all(_is_tensor(one) for one in fetches)
    return _is_tensor(fetches)


def _is_tensor(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    roots = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    return bool(roots & {"tensorflow", "keras"}) and (not callable(value) or hasattr(value, "dtype"))


def _feeds(feed_dict: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Split a feed_dict into columns and constants, by the name of the input."""
    if feed_dict is None:
        return {}, {}
    if not isinstance(feed_dict, Mapping):
        raise wrong("feed_dict", feed_dict, 'a dict of placeholders and columns, such as {x: "column"}')
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for key, value in feed_dict.items():
        placeholder = key.deref() if hasattr(key, "deref") else key
        name = placeholder if isinstance(placeholder, str) else getattr(getattr(placeholder, "op", None), "name", None)
        if not isinstance(name, str) or not name:
            raise wrong("feed_dict", feed_dict, "placeholders or their names as keys")
        name = name.partition(":")[0]
        if isinstance(value, str):
            columns[name] = value
        else:
            constants[name] = value
    return columns, constants


def _check_inputs(program: Program, names: list[str]) -> None:
    known = [one.name for one in program.inputs]
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"feed_dict has {name!r}, but the fetches need no such placeholder. They need: "
                f"{', '.join(known) or 'none'}."
            )
