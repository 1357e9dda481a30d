"""Every argument of every public call of a store is checked before anything is written or started."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest

from orca import Store
from orca.store import Handle
from orca.store.datasets import Datasets
from orca.store.handles import start
from orca.store.models import Models
from orca.store.runtime import ModelRuntime, Runtime
from orca.store.tokens import Tokens
from tests.orca.wrong_values import Call, Case, arguments_of, count_of, extra, mistakes

X = np.zeros((2, 6), "f4")
PATH = extra("\0", "/", "s3://", right="text")
NAME = extra("../x", "a b", "a/1", "x" * 200)
REFERENCE = extra("../x", "net@", "net@@1", "net@latest@1", "net{a=b}", "x" * 200)
ALIAS = extra("latest", "v3", "3", "a/b", "")
STORE: dict[str, Any] = {}


def om() -> Store:
    return STORE["store"]


def on(
    kind: Any, group: str, name: str, right: dict[str, Any], extras: dict[str, Any], skip: tuple[str, ...] = ()
) -> Call:
    """Return the call of a method of one part of the store."""
    run = lambda **changes: getattr(getattr(om(), group), name)(**{**right, **changes})  # noqa: E731
    return Call(f"{group}.{name}", getattr(kind, name), run, extras, skip)


def put(**changes: Any) -> Any:
    return om().models.put(**{"obj": STORE["ir"], "name": "other", **changes})


MODELS = [
    Call("models.put", Models.put, put, {
        "obj": extra(right=""), "name": NAME, "tag": extra("latest", "v1", [], ["a", "a b"], right="text"),
        "example": extra(right="None"), "attributes": extra({"a": {1}}, {"a": float("nan")}),
        "history": extra([5], right="None, empty list, empty dict"),
    }),
    on(Models, "models", "get", {"name": "net"}, {"name": REFERENCE, "into": extra(right="None")}),
    on(Models, "models", "resolve", {}, {"name": REFERENCE}),
    on(Models, "models", "exists", {}, {"name": REFERENCE}),
    on(Models, "models", "metadata", {}, {"name": REFERENCE}),
    on(Models, "models", "list", {}, {}),
    on(Models, "models", "versions", {}, {"name": NAME}),
    on(Models, "models", "aliases", {}, {"name": NAME}),
    on(Models, "models", "alias", {"name": "net", "alias": "best"}, {"name": REFERENCE, "alias": ALIAS}),
    on(Models, "models", "unalias", {"name": "net", "alias": "best"}, {"name": NAME, "alias": ALIAS}),
    on(Models, "models", "drop", {"name": "missing"}, {"name": REFERENCE}),
    on(Models, "models", "export", {"name": "net", "path": "unused"}, {"name": REFERENCE, "path": PATH}),
]  # fmt: skip
JSON = "None, text, empty text, integer, float, negative, zero, huge, True, empty list, empty dict, array"
DATASETS = [
    on(Datasets, "datasets", "put", {"data": [1], "name": "other"}, {
        "data": extra({1}, right=JSON), "name": NAME, "attributes": extra({"a": {1}}),
    }),
    on(Datasets, "datasets", "get", {"name": "rows"}, {
        "name": extra("../x", "rows@1", "rows^", "rows{a}"), "columns": extra("x", [5], ["missing"]),
        "as_": extra("tf.data", "parquet", choices=True), "features": extra(right="empty dict"),
    }),
    on(Datasets, "datasets", "list", {}, {}),
    on(Datasets, "datasets", "exists", {}, {"name": NAME}),
    on(Datasets, "datasets", "metadata", {}, {"name": NAME}),
    on(Datasets, "datasets", "drop", {}, {"name": NAME}),
]  # fmt: skip


def called(method: str) -> Any:
    def run(**changes: Any) -> Any:
        return getattr(om().runtime.model("net"), method)(**{"data": X, **changes}).get(timeout=60)

    return run


DATA = extra("missing", right="array")
RUNTIME = [
    on(Runtime, "runtime", "model", {"name": "net"}, {"name": REFERENCE, "into": extra(right="None")}),
    on(Runtime, "runtime", "run", {"function": lambda: 1}, {
        "function": extra(), "save_as": NAME, "example": extra(X, right="None"), "tag": extra("latest", "best"),
    }),
    Call("runtime.predict", ModelRuntime.predict, called("predict"), {"data": DATA, "save_as": NAME}),
]  # fmt: skip
TOKENS = [
    on(Tokens, "tokens", "add", {"label": "mine"}, {
        "label": extra("x" * 200, "a\nb"), "pattern": extra("x" * 300), "days": extra(0, -1),
    }),
    on(Tokens, "tokens", "drop", {"label": "missing"}, {}),
]  # fmt: skip
OTHERS = [
    Call("Store", Store.__init__, lambda **changes: Store(**{"path": STORE["new"], **changes}), {
        "path": PATH, "db": extra("mysql://host/name", "sqlite://", "sqlite:///:memory:", "://", choices=True),
    }),
    Call("Handle.get", Handle.get, lambda **changes: start(lambda task: 1, "x").get(**changes), {
        "timeout": extra(-1, right="integer, float, zero, huge"),
    }),
]  # fmt: skip
CALLS = [*MODELS, *DATASETS, *RUNTIME, *TOKENS, *OTHERS]
ELSEWHERE = {"add", "predictor", "stored", "ir_path", "problems", "sweep", "rows", "check", "find"}
"""Calls of other parts of Orca, and those that accept anything."""


@pytest.fixture(scope="module", autouse=True)
def filled(tmp_path_factory: pytest.TempPathFactory, ir: str) -> None:
    store = Store(tmp_path_factory.mktemp("wrong") / "store")
    store.models.put(ir, "net")
    store.datasets.put({"x": X}, "rows")
    STORE.update(store=store, ir=ir, new=tempfile.mkdtemp())


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, local: Any) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_a_wrong_value_is_refused_before_anything_is_written(cases: list[Case]):
    assert cases
    changes = om().changes()
    assert mistakes(cases) == []
    assert om().changes() == changes
    assert om().sweep() == []


def test_every_public_call_has_cases():
    groups = (("models", Models), ("datasets", Datasets), ("runtime", Runtime), ("tokens", Tokens))
    public = {f"{group}.{name}" for group, kind in groups for name in vars(kind) if not name.startswith("_")}
    missing = public - {call.name for call in CALLS} - {"tokens.list"}
    assert {name.partition(".")[2] for name in missing} <= ELSEWHERE
    assert count_of(CALLS) > 300
