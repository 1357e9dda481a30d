"""Damaged saved states: `load` and `resume=True` give a state or an OrcaError."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from orca.estimator import Estimator
from orca.runs import saved_states, states
from orca.runs.values import Learned, Setup
from orca.testing.linear import LINEAR, LinearSpec
from tests.fuzzing.mutations import EDITS, damaged, shared_memory, write

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["orca.array", "orca.tuple", "orca.items", "orca.tensor", "a"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)
CASES = st.one_of(
    st.tuples(st.just("manifest"), EDITS),
    st.tuples(st.just("arrays"), EDITS),
    st.tuples(st.just("arrays, checksum right"), EDITS),
    st.tuples(st.just("entry"), st.tuples(st.integers(0, 1 << 16), JSON)),
    st.tuples(st.just("missing"), st.sampled_from(["arrays", "orca.json"])),
)


class States:
    """A folder with two checkpoints, of which the newer one is damaged in each case."""

    def __init__(self, folder: str) -> None:
        self.folder, self._path = folder, f"{folder}/checkpoint-2"
        self._setup = Setup.create(LINEAR, LinearSpec(), model_dir=folder)
        self._learned = Learned.nothing(self._setup, 1)
        for step in (1, 2):
            facts = {"framework": "linear", "backend": "gathered", "seed": 3, "epoch": step, "step": step, "time": step}
            saved_states.save(f"{folder}/checkpoint-{step}", facts, _state(step))
        self._intact = {entry.name: Path(entry.path).read_bytes() for entry in os.scandir(self._path)}
        self._arrays = next(name for name in self._intact if name.endswith(".safetensors"))

    def check(self, case: tuple[str, Any]) -> None:
        self._damage(*case)
        # With an older, intact checkpoint there is always one to resume from.
        assert states.resumed(self._setup, self._learned, True).state is not None
        saved_states.about(self._path)
        est = Estimator(self._setup, self._learned)
        before = est._learned
        try:
            est.load(self._path)
        except Exception:
            assert est._learned is before, "a load that failed has changed the estimator"
            raise

    def _damage(self, what: str, how: Any) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        os.mkdir(self._path)
        files = dict(self._intact)
        if what == "manifest":
            files["orca.json"] = damaged(files["orca.json"], how)
        elif what.startswith("arrays"):
            files[self._arrays] = damaged(files[self._arrays], how)
            if "right" in what:
                right = hashlib.sha256(files[self._arrays]).hexdigest().encode()
                files["orca.json"] = re.sub(rb'"sha256": "\w+"', b'"sha256": "' + right + b'"', files["orca.json"])
        elif what == "entry":
            files["orca.json"] = _replaced(files["orca.json"], *how)
        else:
            files.pop(self._arrays if how == "arrays" else how)
        for name, content in files.items():
            write(f"{self._path}/{name}", content)


def _state(step: int) -> dict[str, Any]:
    weights = np.arange(7.0) * step
    position = {"epoch": step, "batch": 0, "rows": 8, "batch_size": 2, "begun": 0, "ranks": [], "metrics": [],
                "reason": None, "callbacks": []}  # fmt: skip
    return {
        "model": {"weights": weights},
        "optimizer": {"velocity": weights, "more": (1, 2.5), "by number": {0: np.ones(3, "f4")}},
        "position": position,
        "example": np.zeros((0, 6), "f4"),
    }


def _replaced(manifest: bytes, number: int, value: Any) -> bytes:
    """Replace one entry of the manifest, at any depth."""
    tree = json.loads(manifest)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key, entry in list(node.items()) if isinstance(node, dict) else list(enumerate(node)):
            places.append((node, key))
            if isinstance(entry, dict | list):
                visit(entry)

    visit(tree)
    node, key = places[number % len(places)]
    node[key] = value
    return json.dumps(tree).encode()


@contextmanager
def target() -> Iterator[Any]:
    with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
        yield States(folder).check


__all__ = ["CASES", "States", "target"]
