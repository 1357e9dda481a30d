"""TensorFlow's datasets through the conformance checks of adapters."""

from __future__ import annotations

import tensorflow as tf

from orca.testing import AdapterCase
from tests.conformance.adapter_cases import pair


def dataset(frame):
    return tf.data.Dataset.from_tensor_slices(pair(frame)).batch(7)


ADAPTERS = {"local": [AdapterCase("tf.data Dataset", dataset, named=False, streams=True)]}


def test_adapter_conforms(cell, cell_context, perform):
    perform(cell.check, cell.case, cell_context, name=cell.case.name, runtime=cell.runtime)
