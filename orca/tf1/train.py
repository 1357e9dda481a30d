"""``tf.train`` of TensorFlow 1; functions that need a default graph use that of this thread."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as _v1

from orca.backends.graph import default_graph as _default_graph
from orca.backends.graph import files as _files


class Saver(_v1.train.Saver):  # type: ignore[misc]
    """Writes and reads checkpoints of a session, by default with all variables of the default graph."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _default_graph.entered():
            super().__init__(*args, **kwargs)

    def save(self, sess: Any, *args: Any, **kwargs: Any) -> Any:
        """Write the values of a session; return the path of the checkpoint."""
        with sess.graph.as_default():
            return super().save(sess, *args, **kwargs)

    def restore(self, sess: Any, save_path: str) -> None:
        """Read the values of a checkpoint, or of the newest one in a folder, into a session."""
        with sess.graph.as_default():
            super().restore(sess, _files.checkpoint_prefix(save_path))


def get_global_step(graph: Any = None) -> Any:
    """Return the variable that counts steps; None if the graph has none."""
    with _default_graph.entered():
        return _v1.train.get_global_step(graph)


def __getattr__(name: str) -> Any:
    return getattr(_v1.train, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1.train), *__all__})


__all__ = ["Saver", "get_global_step"]
