"""The default graph of programs in the style of TensorFlow 1, which build it without naming it.

A placeholder outside of any graph opens a graph for its thread, in which all operations are built from then on. The
call that captures the graph (`Estimator.from_graph` and the classes of `orca.tfpark`) closes it, and so does any use of
a Keras layer or model: eager execution, which Keras needs, is back, and the next placeholder opens a new graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as v1
from tensorflow.python.eager import context as eager
from tensorflow.python.framework import ops

_KERAS = {
    "Variable": ("__init__", "assign", "numpy"),
    "Layer": ("__call__",),
    "Model": ("evaluate", "fit", "predict", "predict_on_batch", "test_on_batch", "train_on_batch"),
}
"""The calls of Keras that need eager execution. Others, such as `Model.compile`, create variables."""


class _DefaultGraph(threading.local):
    """The graph that a thread has opened last."""

    graph: Any = None
    entered: Any = None
    """The context of `graph` while it is open."""
    depth = 0
    """The number of graphs that are entered, this one included."""
    captured = False


_thread = _DefaultGraph()
_watching = threading.Lock()
_watched = False


def begin() -> None:
    """Open a graph for this thread, unless it builds one already; one that was captured is not continued."""
    if _thread.captured:
        close()
    if not v1.executing_eagerly():
        return
    _watch_keras()
    _thread.graph, _thread.captured = v1.Graph(), False
    _thread.graph.seed = eager.global_seed()  # of tf.set_random_seed before the first placeholder
    _thread.entered = _thread.graph.as_default()
    _thread.entered.__enter__()
    _thread.depth = _depth()


def begin_first() -> None:
    """Open a graph for this thread, unless it has opened one before."""
    if _thread.graph is None:
        begin()


def close(captured: Any = None) -> None:
    """Close this thread's graph, if it is open, and if it is the one that was captured.

    Within another context, such as that of a session, it stays open until that has ended.
    """
    if _thread.entered is None or captured not in (None, _thread.graph):
        return
    _thread.captured = True
    if _depth() == _thread.depth:
        entered, _thread.entered = _thread.entered, None
        entered.__exit__(None, None, None)


def close_if_captured() -> None:
    """Close a graph that was captured within another context, which has ended now."""
    if _thread.captured:
        close()


def reset() -> None:
    """Forget this thread's graph: the next placeholder opens a new one."""
    close()
    if _thread.entered is None:
        _thread.graph = None


@contextmanager
def entered() -> Iterator[None]:
    """Enter this thread's last graph, for functions that need a default graph; no effect within a graph."""
    if _thread.graph is None or not v1.executing_eagerly():
        yield
        return
    with _thread.graph.as_default():
        yield


def _depth() -> int:
    return len(ops._default_graph_stack.stack)


def _watch_keras() -> None:
    """Let Keras close the graph of its thread."""
    global _watched
    with _watching:
        if _watched:
            return
        import keras

        for name, methods in _KERAS.items():
            kind = getattr(keras, name)
            for method in methods:
                setattr(kind, method, _closing(getattr(kind, method)))
        _watched = True


def _closing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.entered is not None:
            close()
        return method(*args, **kwargs)

    return call
