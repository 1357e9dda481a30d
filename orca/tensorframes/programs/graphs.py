"""TensorFlow programs: tensors of a graph, names in a file, and functions that are traced."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orca.core.arguments import shown, wrong
from orca.errors import ArgumentError, DataError, OrcaError, suggest
from orca.tensorframes.cells import TEXT, Array, Cell, Shape, merged, shape_text
from orca.tensorframes.programs.base import Bound, Input, Output, Program, Run, check_outputs
from orca.tensorframes.programs.functions import inputs_of, results_of
from orca.tensorframes.programs.library import agree
from orca.tensorframes.programs.probing import observed, samples

if TYPE_CHECKING:
    from orca.backends.graph.frozen import FrozenGraph, Runnable
    from orca.backends.graph.vectorizing import RowGraph


@dataclass(frozen=True)
class GraphBound(Bound):
    """A graph that computes blocks, or the graphs of one and of many rows."""

    graph: Any
    """A `Runnable` for blocks, a `RowGraph` for rows."""
    outputs: tuple[Output, ...]
    tier: str
    key: str

    @property
    def modules(self) -> tuple[str, ...]:
        return ("tensorflow", "orca.backends.graph.vectorizing")

    def start(self, threads: int) -> Run:
        call = self.graph.start(threads)
        run: Run = call if self.tier != "block" else lambda arrays: call(*arrays)
        return run


class GraphProgram(Program):
    """Tensors of a graph, or names of them in a file; captured with the values of variables."""

    def __init__(
        self,
        frozen: FrozenGraph,
        names: Sequence[str],
        form: str,
        aliases: Mapping[str, str],
        constants: Mapping[str, Any],
    ) -> None:
        self.form = form
        self.names = tuple(names)
        self.constants = constants
        self._frozen = frozen
        self._nodes = {alias: node for alias, node in aliases.items() if any(one.name == node for one in frozen.inputs)}
        public = {node: alias for alias, node in self._nodes.items()}
        self.inputs = tuple(
            Input(public.get(one.name, one.name), one.dtype, one.shape, one.optional) for one in frozen.inputs
        )
        check_outputs(self.names)

    def bind(self, cells: Mapping[str, Cell], rows: bool, text: str) -> Bound:
        nodes = {self._nodes.get(name, name): cell for name, cell in cells.items()}
        constants = {self._nodes.get(name, name): value for name, value in self.constants.items()}
        return bound(self._frozen, self.names or (), nodes, constants, rows, text)


class TracedProgram(Program):
    """A function of tensors, traced for the columns of a call."""

    form = "dict"
    names = None

    def __init__(self, function: Any, feed: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        self.constants = constants
        self._function: Callable[..., Any] = getattr(function, "python_function", function)
        self._shown = shown(function)
        signature = getattr(function, "input_signature", None)
        self.inputs = inputs_of(self._function, {**feed, **constants})
        if signature is not None:
            self.inputs = tuple(_from_spec(one, spec) for one, spec in zip(self.inputs, signature, strict=False))

    def bind(self, cells: Mapping[str, Cell], rows: bool, text: str) -> Bound:
        from orca.backends.graph.frozen import FrozenInput, freeze_function

        inputs = [FrozenInput(name, "string" if cell.dtype in TEXT else cell.dtype, cell.shape, False)
                  for name, cell in cells.items()]  # fmt: skip
        function = functools.partial(self._function, **self.constants) if self.constants else self._function
        try:
            frozen, returned = freeze_function(function, inputs)
        except OrcaError:
            raise
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            columns = ", ".join(f"{name} ({cell})" for name, cell in cells.items())
            raise ArgumentError(
                f"fetches={self._shown} cannot be traced for {columns}: {type(error).__name__}: "
                f"{' '.join(lines[-1:]).strip()}"
            ) from error
        # TensorFlow orders the entries of a dict by name.
        names = sorted(results_of(self._shown, returned))
        if len(names) != len(frozen.outputs):
            raise ArgumentError(f"fetches={self._shown} returned structures; expected a dict of tensors.")
        nodes = {one.name: cell for one, cell in zip(frozen.inputs, cells.values(), strict=True)}
        return bound(frozen, names, nodes, {}, rows, text)


def _from_spec(one: Input, spec: Any) -> Input:
    from orca.backends.graph.tensors import dtype_name

    shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
    return Input(one.name, dtype_name(spec.dtype), shape)


def bound(
    frozen: FrozenGraph,
    names: Sequence[str],
    cells: Mapping[str, Cell],
    constants: Mapping[str, Any],
    rows: bool,
    text: str,
) -> GraphBound:
    """Import a graph for columns of these types, and learn the types of its results."""
    from orca.backends.graph.frozen import import_with
    from orca.backends.graph.vectorizing import row_graph

    shapes = {name: cell.shape for name, cell in cells.items()}
    values = {name: _constant(frozen, name, value) for name, value in constants.items()}
    try:
        graph: Any
        if rows:
            accept = _same_as_rows(list(cells.values()), frozen.is_random)
            graph = row_graph(frozen, shapes, values, accept)
            tier, inferred, runnable = graph.tier, graph.shapes, graph.row
        else:
            imported = import_with(frozen, shapes, values)
            tier, inferred, graph = "block", imported.shapes, imported.runnable
            runnable = graph
    except ValueError as error:
        if isinstance(error, OrcaError):
            raise
        listed = ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
        raise ArgumentError(f"The graph does not accept the shapes of the columns, {listed}: {error}") from error
    results = _shapes(frozen, inferred, cells, runnable, rows, names)
    outputs = tuple(
        Output(name, Cell(_dtype(name, dtype, text), shape))
        for name, dtype, shape in zip(names, frozen.dtypes, results, strict=True)
    )
    key = hashlib.sha256(runnable.graph + repr((runnable.feeds, runnable.fetches, outputs, tier)).encode()).hexdigest()
    return GraphBound(graph, outputs, tier, key)


def _constant(frozen: FrozenGraph, name: str, value: Any) -> Array:
    from orca.backends.graph.frozen import check_constant

    return check_constant(frozen, name, value)


def _dtype(name: str, dtype: str, text: str) -> str:
    if dtype == "string":
        return text
    if dtype == "bfloat16":
        return "float32"
    if dtype.startswith(("complex", "void", "object", "float8", "int4", "uint4")):
        raise ArgumentError(f"The result {name!r} has dtype {dtype}, which no column can hold. Cast it to another one.")
    return dtype


def _same_as_rows(cells: Sequence[Cell], is_random: bool) -> Callable[[RowGraph], bool]:
    """Return a check that many rows at once give what single rows do, on small random arrays."""

    def accept(graph: RowGraph) -> bool:
        from dataclasses import replace

        for size in (4, 6, 3, 12):
            arrays = samples(cells, 3, size)
            try:
                single = replace(graph, tier="row", many=None).start(1)(arrays)
            except Exception:
                continue  # such values are refused by the graph itself, so nothing can be compared
            try:
                whole = graph.start(1)(arrays)
            except Exception:
                return False
            if is_random:
                return all(len({part.shape for part in one}) == 1 for one in single)
            return all(map(agree, whole, single))
        return True

    return accept


def _shapes(
    frozen: FrozenGraph,
    inferred: Sequence[Shape | None],
    cells: Mapping[str, Cell],
    runnable: Runnable,
    rows: bool,
    names: Sequence[str],
) -> list[Shape]:
    """Return the shapes of the results; what cannot be inferred is seen by running the graph on small arrays."""
    shapes: list[Shape | None] = []
    for one, user in zip(inferred, frozen.shapes, strict=True):
        try:
            shapes.append(merged(one, user))
        except ValueError:
            shapes.append(one)
    unknown = [name for name, shape in zip(names, shapes, strict=True) if shape is None]
    if not unknown:
        return [shape for shape in shapes if shape is not None]
    call = runnable.start(1)
    try:
        seen = observed(cells, lambda arrays: call(*arrays.values()), rows)
    except Exception as error:
        raise ArgumentError(
            f"The rank of the result {unknown[0]!r} is not known: neither the graph tells it, nor could it be run on "
            f"sample values ({type(error).__name__}). Set it with tensor.set_shape(...), or give the placeholders a "
            "shape."
        ) from error
    return [one if shape is None else shape for one, shape in zip(seen, shapes, strict=True)]


# Capture


def capture_tensors(
    fetches: Any, graph: Any, constants: Mapping[str, Any], initial_variables: bool, sess: Any
) -> GraphProgram:
    """Capture tensors of a graph, by object or by name."""
    import tensorflow.compat.v1 as v1

    from orca.backends.graph.frozen import freeze
    from orca.backends.graph.tensors import Resolver

    if sess is not None and not isinstance(sess, v1.Session | v1.InteractiveSession):
        raise wrong("sess", sess, "a tf.Session")
    if isinstance(graph, str | os.PathLike):
        return _from_file(fetches, os.fspath(graph), constants)
    if type(graph).__name__ == "GraphDef":
        imported = v1.Graph()
        with imported.as_default():
            v1.import_graph_def(graph, name="")
        graph = imported
    if graph is not None and not isinstance(graph, v1.Graph):
        raise wrong("graph", graph, "the path of a frozen graph (.pb) or of a SavedModel, or a tf.Graph")
    resolver = Resolver(graph if graph is not None else None if sess is None else sess.graph)
    tensors = resolver.tree("fetches", fetches)
    form, names, flat = _form(tensors)
    session = sess
    if sess is None and not initial_variables:
        session = v1.get_default_session()
        if session is None or session.graph is not flat[0].graph:
            raise ArgumentError(
                "initial_variables=False takes the values of variables from a session, but there is no default session "
                "with this graph. Give sess=, or call within `with tf.Session() as sess:`."
            )
    return GraphProgram(freeze(flat, session), names, form, {}, constants)


def _form(tensors: Any) -> tuple[str, list[str], list[Any]]:
    if isinstance(tensors, Mapping):
        return "dict", list(tensors), list(tensors.values())
    if isinstance(tensors, list):
        if not tensors:
            raise wrong("fetches", tensors, "at least one tensor")
        return "list", [tensor.op.name for tensor in tensors], tensors
    return "one", [tensors.op.name], [tensors]


def _from_file(fetches: Any, path: str, constants: Mapping[str, Any]) -> GraphProgram:
    from orca.backends.graph import files
    from orca.backends.graph.frozen import freeze
    from orca.backends.graph.tensors import Resolver

    if os.path.isdir(path) and os.path.exists(os.path.join(path, "saved_model.pb")):
        with files.loaded_saved_model(path) as (session, meta):
            signature = "serving_default" if "serving_default" in meta.signature_def else None
            ports = files.signature_names(meta, path, signature) if signature else {"inputs": {}, "outputs": {}}
            named = _by_key(fetches, ports["outputs"], path)
            form, names, flat = _form(Resolver(session.graph).tree("fetches", named))
            if form != "dict":
                asked = [fetches] if isinstance(fetches, str) else list(fetches)
                names = [key if key in ports["outputs"] else name for key, name in zip(asked, names, strict=True)]
            inputs = {key: name.partition(":")[0] for key, name in ports["inputs"].items()}
            return GraphProgram(freeze(flat, session), names, form, inputs, constants)
    if not os.path.isfile(path):
        raise DataError(f"graph={path!r} is not a frozen graph (.pb) or the folder of a SavedModel.")
    graph = files.read_frozen(path).graph
    form, names, flat = _form(Resolver(graph).tree("fetches", fetches))
    return GraphProgram(freeze(flat), names, form, {}, constants)


def _by_key(fetches: Any, keys: Mapping[str, str], path: str) -> Any:
    """Replace the keys of a signature's outputs by the names of their tensors."""
    if isinstance(fetches, str):
        if fetches not in keys and ":" not in fetches and keys and suggest(fetches, keys):
            raise ArgumentError(
                f"fetches={fetches!r} is not an output of {path!r}. Outputs: {', '.join(keys)}."
                + suggest(fetches, keys)
            )
        return keys.get(fetches, fetches)
    if isinstance(fetches, Mapping):
        return {name: _by_key(one, keys, path) for name, one in fetches.items()}
    return [_by_key(one, keys, path) for one in fetches]
