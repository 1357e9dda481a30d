"""Every example in a docstring runs and gives the output shown."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import orca

SKIPPED = ("orca.backends.mxnet", "orca.backends.keras", "orca.backends.graph")
MODULES = [
    info.name
    for info in pkgutil.walk_packages(orca.__path__, "orca.")
    if not info.name.startswith(SKIPPED) and info.name not in ("orca.launch.zygote",)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(local, name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
