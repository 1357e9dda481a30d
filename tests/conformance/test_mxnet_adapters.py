"""MXNet's datasets and iterators through the conformance checks of adapters."""

from __future__ import annotations

import pytest

from orca.testing import AdapterCase
from tests.conformance.adapter_cases import pair

mx = pytest.importorskip("mxnet")


def iterator(frame):
    x, y = pair(frame)
    return mx.io.NDArrayIter(x, y.astype("f4"), batch_size=min(7, len(y)))


def dataset(frame):
    return mx.gluon.data.ArrayDataset(*pair(frame))


def loader(frame):
    return mx.gluon.data.DataLoader(dataset(frame), batch_size=7)


ADAPTERS = {
    "local": [
        AdapterCase("MXNet NDArrayIter", iterator, named=False),
        AdapterCase("Gluon DataLoader", loader, named=False),
    ]
}


def test_adapter_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.name, runtime=cell.runtime)
