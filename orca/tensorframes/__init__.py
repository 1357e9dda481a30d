"""TensorFrames: small tensor programs over the columns of frames. ``import orca.tensorframes as tfs``.

A program is a set of TensorFlow tensors, names in a frozen graph or a SavedModel, a ``tf.function``, or a plain Python
function written with numpy, TensorFlow or torch.

>>> import pyarrow as pa
>>> import orca.tensorframes as tfs
>>> table = pa.table({"x": [1.0, 2.0], "y": [10.0, 20.0]})
>>> tfs.map_rows(lambda x, y: {"z": x + 3 * y}, table).to_pydict()
{'z': [31.0, 62.0], 'x': [1.0, 2.0], 'y': [10.0, 20.0]}
"""

from orca.tensorframes.mapping import map_blocks, map_rows
from orca.tensorframes.placeholders import block, row
from orca.tensorframes.reducing import aggregate, reduce_blocks, reduce_rows
from orca.tensorframes.schemas import analyze, append_shape, print_schema

__all__ = [
    "aggregate",
    "analyze",
    "append_shape",
    "block",
    "map_blocks",
    "map_rows",
    "print_schema",
    "reduce_blocks",
    "reduce_rows",
    "row",
]
