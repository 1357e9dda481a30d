"""Backends by name, and the constructor that reaches all of them."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from orca import Estimator
from orca.backends import registry
from orca.backends.base import Backend, FitCheck, StepOptions, Topology
from orca.backends.registry import find
from orca.callbacks import LRScheduler
from orca.context import Context
from orca.errors import ArgumentError
from orca.triggers import SeveralIteration
from tests.conformance.models import make_data

FIT = {"model": nn.Linear(6, 2), "optimizer": torch.optim.SGD, "loss": nn.CrossEntropyLoss(), "config": {"lr": 0.1}}


def test_backends_are_known_by_both_names_and_by_aliases():
    horovod = find("torch", "horovod")
    assert find("torch.horovod") is horovod
    assert find("torch.ddp") is find("torch", "torch.distributed") is find("torch", "torch_distributed")
    assert find("torch", "ps").name == "parameter_server"
    assert horovod.framework is find("torch", "ps").framework


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.horovd", r"name='torch.horovd' is not known for torch. Known: horovod, .*Did you mean 'horovod'"),
        ("torhc.horovod", r"name='torhc.horovod': no backend of 'torhc'.*torch.horovod.*Did you mean 'torch'"),
        ("jax", r"name='jax': no backend of 'jax' is registered"),
        ("torch", r"name='torch' is not known for torch. Known: horovod"),
    ],
)
def test_unknown_backends_are_refused_with_the_known_ones(name, words):
    with pytest.raises(ArgumentError, match=words):
        Estimator.from_backend(name, model=nn.Linear(2, 1))


def test_an_entry_point_that_is_no_backend_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_package", types.SimpleNamespace(thing=3))
    entries = [EntryPoint("a.thing", "a_package:thing", registry.GROUP), EntryPoint("a.no", "a_package:no", "")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    for name, kind in (("a.thing", "int"), ("a.no", "NoneType")):
        with pytest.raises(ArgumentError, match=rf"entry point {name} .* a {kind}; expected .*orca.backends.base.Back"):
            find(name)


def test_from_backend_trains_like_from_torch_and_keeps_its_parameters(local: Context):
    x, y = make_data(40)
    est = Estimator.from_backend("torch.ddp", **FIT, seed=3, batch_size=10, compression=None)
    other = Estimator.from_torch(**FIT, seed=3, batch_size=10)
    assert est.fit(x, y)["loss"] == other.fit(x, y)["loss"]
    assert est.get_params()["name"] == "torch.ddp"
    assert est.get_params()["config__lr"] == 0.1
    assert "name" not in other.get_params()
    copy = clone(est).set_params(config__lr=0.5, precision="bf16")
    assert copy.spec.config == {"lr": 0.5}
    assert copy.spec.precision == "bf16"
    before = est.predict(x)
    est.set_params(name="torch.parameter_server")
    assert est.backend.name == "parameter_server"
    np.testing.assert_array_equal(est.predict(x), before)


def test_unknown_arguments_are_named_with_a_suggestion():
    with pytest.raises(ArgumentError, match=r"optimiser=3 is not an option of backend='horovod'.*Did you mean 'optim"):
        Estimator.from_backend("torch.horovod", model=nn.Linear(2, 1), optimiser=3)
    with pytest.raises(ArgumentError, match=r"stalenes=3 .*Its options: mode, staleness.*Did you mean 'staleness'"):
        Estimator.from_torch(model=nn.Linear(2, 1), backend="parameter_server", stalenes=3)


def test_checks_leave_specs_as_they_are_and_topology_says_who_runs():
    backend = find("torch.parameter_server")
    spec = backend.framework.spec(FIT, {"mode": "async", "servers": 2})
    before = dict(spec.__dict__)
    backend.check(spec, 3)
    assert spec.__dict__ == before
    assert backend.topology(spec, 3) == Topology(5, lockstep=False)
    for fit, words in (
        (FitCheck(3, StepOptions(), trigger=SeveralIteration(5)), "checkpoint_trigger=.*lockstep; use EveryEpoch"),
        (FitCheck(3, StepOptions(), [LRScheduler(torch.optim.lr_scheduler.StepLR, per="step")]), 'use per="epoch"'),
    ):
        with pytest.raises(ArgumentError, match=words):
            backend.check_fit(spec, fit)


@pytest.mark.parametrize("framework", ["torch", "keras", "openvino"])
def test_entry_points_of_a_framework_resolve(framework):
    pytest.importorskip(framework)
    for name in registry._registered()[framework]:
        backend = find(framework, name)
        assert isinstance(backend, Backend)
        assert (backend.name, backend.framework.name) == (name, framework)
