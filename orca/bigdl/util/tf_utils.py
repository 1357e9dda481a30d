"""`dump_model`: a TensorFlow graph and its variables as files that `load_pipeline` reads."""

from __future__ import annotations

import os
from typing import Any

from orca.core.arguments import check_path, known_arguments, optional


@known_arguments
def dump_model(
    path: str | os.PathLike[str], graph: Any = None, sess: Any = None, ckpt_file: str | os.PathLike[str] | None = None
) -> None:
    """Write a TensorFlow graph as ``model.pb`` and the values of its variables as ``model.bin``.

    The graph is written as it is, with the operations that read and decode data. ``model.bin`` holds the values in the
    format of safetensors.

    Args:
        path: The folder, which is created if it does not exist.
        graph: A ``tf.Graph``. Default: that of `sess`, else the default graph.
        sess: A session with the values. Default: the initial values of the graph.
        ckpt_file: A checkpoint of TensorFlow with the values, in place of the session's.

    Raises:
        ArgumentError: If the graph is empty, or not that of the session, or a variable has no value.
        DataError: If `ckpt_file` is not a checkpoint, or has none of the graph's variables.

    >>> import tempfile
    >>> import orca.tf1 as tf
    >>> with tf.Graph().as_default() as graph:
    ...     weights = tf.get_variable("weights", [3, 2])
    >>> folder = tempfile.mkdtemp()
    >>> dump_model(folder, graph)
    >>> sorted(os.listdir(folder))
    ['model.bin', 'model.pb']
    """
    folder, checkpoint = check_path("path", path), optional(check_path)("ckpt_file", ckpt_file)
    from orca.backends.graph.pipelines.dumping import dump

    dump(folder, graph, sess, checkpoint)
