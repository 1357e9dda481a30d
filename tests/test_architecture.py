"""The layers of the code base: imports point down only, without cycles, and no module knows two axes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("core", "vocabulary", "launch", "shards", "backends", "runtimes", "runs", "public")
"""From the bottom to the top. A module imports from its own layer or from those below."""
VOCABULARY = (
    "orca.metrics",
    "orca.triggers",
    "orca.callbacks",
    "orca.loggers",
    "orca.history",
    "orca.schedules",
    "orca.optim_methods",
)
"""Public names that ranks use too."""
FRAMEWORKS = {"torch", "tensorflow", "keras", "mxnet", "openvino", "horovod"}
RUNTIMES = {"ray", "pyspark", "spark"}


def layer(module: str) -> str:
    """Return the layer of a module."""
    if module == "orca.errors" or module.startswith("orca.core"):
        return "core"
    if module.startswith(VOCABULARY):
        return "vocabulary"
    part = module.split(".")[1] if "." in module else ""
    return part if part in LAYERS else "public"


def sources() -> dict[str, str]:
    """Return the source of every module of the product by its name."""
    files: dict[str, str] = {}
    for folder, prefix in (
        (ROOT / "orca", "orca"),
        (ROOT / "backends", "orca.backends"),
        (ROOT / "shards", "orca.shards"),
    ):
        for path in folder.rglob("*.py"):
            inside = path.relative_to(folder)
            if inside.parts[0] in ("backends", "shards") and prefix == "orca":
                continue  # links to the folders that are visited under their own names
            parts = [prefix, *inside.with_suffix("").parts]
            files[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return files


def imports(source: str, names: set[str], type_only: bool = False) -> Iterator[str]:
    """Yield the modules of the product that a source imports, also inside of functions."""
    tree = ast.parse(source)
    skipped = set() if type_only else {id(node) for block in _type_blocks(tree) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in names:
                    yield whole
                elif node.module in names:
                    yield node.module


def _type_blocks(tree: ast.Module) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield node


def upward(modules: dict[str, str]) -> list[str]:
    """Return the imports that point up, those for type annotations included."""
    return [
        f"{module} ({layer(module)}) imports {target} ({layer(target)})"
        for module, source in modules.items()
        for target in imports(source, set(modules), type_only=layer(module) != "public")
        if LAYERS.index(layer(target)) > LAYERS.index(layer(module))
    ]


def cycle(modules: dict[str, str]) -> list[str]:
    """Return a cycle of imports at run time, or nothing."""
    graph = {module: set(imports(source, set(modules))) - {module, "orca"} for module, source in modules.items()}
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in sorted(graph[module]):
            if loop := visit(target, [*path, module]):
                return loop
        done.add(module)
        return []

    return next((loop for module in sorted(graph) if (loop := visit(module, []))), [])


def names_two_axes(modules: dict[str, str]) -> list[str]:
    """Return the modules that name both a framework and a runtime, by import or by a string in the code."""
    found = []
    for module, source in modules.items():
        tree = ast.parse(source)
        words = {word for node in ast.walk(tree) for word in _words(node)}
        both = sorted(words & FRAMEWORKS), sorted(words & RUNTIMES)
        if all(both):
            found.append(f"{module} names {', '.join(both[0])} and {', '.join(both[1])}")
    return found


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]
        yield from (part for part in node.module.split(".")[1:] if node.module.startswith("orca."))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        yield node.value.partition(".")[0].partition(":")[0]


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    return sources()


def test_imports_point_down_only(modules: dict[str, str]):
    assert upward(modules) == []


def test_no_module_is_part_of_an_import_cycle(modules: dict[str, str]):
    assert cycle(modules) == []


def test_no_module_names_a_framework_and_a_runtime(modules: dict[str, str]):
    assert names_two_axes(modules) == []


def test_planted_violations_are_found():
    planted = {
        "orca.core.machine": "from orca.estimator import Estimator",
        "orca.estimator": "def fit():\n    from orca.runs.fit import fit",
        "orca.runs.fit": "from orca.runs.states import load",
        "orca.runs.states": "def load():\n    from orca.runs import fit",
        "orca.shards.frames": "import torch\nengine = 'spark'",
        "orca.backends.torch.group": "import torch\nname = 'torch_distributed'",
    }
    assert upward(planted) == ["orca.core.machine (core) imports orca.estimator (public)"]
    assert cycle(planted) == ["orca.runs.fit", "orca.runs.states", "orca.runs.fit"]
    assert names_two_axes(planted) == ["orca.shards.frames names torch and spark"]


def test_the_product_imports_no_library_of_third_party_tables(modules: dict[str, str]):
    for module, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith(("polars", "duckdb")) for name in names), module
