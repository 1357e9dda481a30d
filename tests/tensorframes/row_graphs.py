"""Graphs of one row, of every kind that vectorization meets, with the rows to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import orca.tf1 as tf

RNG = np.random.default_rng(7)
W = RNG.normal(size=(3, 5)).astype("f4")
KERNEL = RNG.normal(size=(2, 2, 1, 3)).astype("f4")
WORDS = ["", "a", "12", "three words here", "ünïcode", "x y"]


@contextmanager
def version_1() -> Iterator[None]:
    """Build conditions and loops from Switch and Merge."""
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.enable_control_flow_v2()


def old(build: Callable[[], Any]) -> Any:
    with version_1():
        return build()


@dataclass(frozen=True)
class Case:
    """A graph: its result for the placeholder x, and the values of x."""

    name: str
    build: Callable[[Any], Any]
    rows: Any
    tier: str
    """How it has to run: "vectorized", "map_fn" or "row"."""
    dtype: Any = tf.float32

    def __str__(self) -> str:
        return self.name


VECTORS = RNG.normal(size=(6, 5)).astype("f4")
MATRICES = RNG.normal(size=(4, 3, 4)).astype("f4")
SCALARS = RNG.normal(size=7).astype("f4")
INTEGERS = RNG.integers(-9, 9, 8).astype("i4")
LISTS = [RNG.normal(size=n).astype("f4") for n in (3, 1, 4, 1, 5)]


def _cases() -> Iterator[Case]:
    v, m, o = "vectorized", "map_fn", "row"
    elementwise = {
        "add": lambda x: x + 3.0,
        "times": lambda x: 2.0 * x * x,
        "exp": tf.exp,
        "sigmoid": tf.sigmoid,
        "tanh": tf.tanh,
        "relu": tf.nn.relu,
        "floor": tf.floor,
        "select": lambda x: tf.where(x > 0, x, -x),
        "clip": lambda x: tf.clip_by_value(x, -0.5, 0.5),
        "to integers": lambda x: tf.cast(x * 10, tf.int64),
        "compare": lambda x: tf.logical_and(x > -1.0, x < 1.0),
    }
    for name, build in elementwise.items():
        yield Case(name, build, VECTORS, v)
    reductions = {
        "sum": tf.reduce_sum,
        "mean": tf.reduce_mean,
        "max": tf.reduce_max,
        "product": tf.reduce_prod,
        "any": lambda x: tf.reduce_any(x > 1.0),
        "log sum exp": tf.reduce_logsumexp,
        "norm": tf.norm,
        "argmax": tf.argmax,
        "cumulative sum": tf.cumsum,
        "divided by its length": lambda x: x / tf.cast(tf.shape(x)[0], tf.float32),
    }
    for name, build in reductions.items():
        yield Case(name, build, VECTORS, v)
    shapes = {
        "reverse": lambda x: tf.reverse(x, [0]),
        "concat": lambda x: tf.concat([x, [1.0, 2.0]], 0),
        "reshape": lambda x: tf.reshape(x, [5, 1]),
        "tile": lambda x: tf.tile(x, [2]),
        "pad": lambda x: tf.pad(x, [[1, 2]]),
        "slice": lambda x: x[1:3],
        "gather": lambda x: tf.gather(x, [4, 0]),
        "one hot": lambda x: tf.one_hot(tf.argmax(x), 5),
        "outer": lambda x: x[:, None] * x[None, :],
    }
    for name, build in shapes.items():
        yield Case(name, build, VECTORS, v)
    # With a known shape these are constants, which depend on no row.
    yield Case("shape", tf.shape, VECTORS, o)
    yield Case("size", tf.size, VECTORS, o)
    yield Case("matvec", lambda x: tf.linalg.matvec(W, x), VECTORS, v)
    yield Case("softmax", lambda x: tf.nn.softmax(tf.linalg.matvec(W, x)), VECTORS, v)
    yield Case("matmul", lambda x: tf.matmul(x, x, transpose_b=True), MATRICES, v)
    yield Case("transpose", tf.transpose, MATRICES, v)
    yield Case("conv2d", lambda x: tf.nn.conv2d(x[None, :, :, None], KERNEL, 1, "VALID")[0], MATRICES, v)
    yield Case("max pool", lambda x: tf.nn.max_pool2d(x[None, :, :, None], 2, 1, "VALID")[0], MATRICES, v)
    yield Case("top k", lambda x: tf.nn.top_k(x, 2)[0], VECTORS, v)
    yield Case("sort", tf.sort, VECTORS, v)
    yield Case("scalar", lambda x: x * 2.0 + 1.0, SCALARS, v)
    yield Case("integers", lambda x: x // 3 + x % 4, INTEGERS, v, tf.int32)
    yield Case("lists", lambda x: x - tf.reduce_mean(x), LISTS, v)
    yield Case("last of lists", lambda x: x[-1], LISTS, v)
    positive = lambda x: tf.reduce_sum(x) > 0  # noqa: E731
    yield Case("cond v1", lambda x: old(lambda: tf.cond(positive(x), lambda: x + 1, lambda: x * 2)), VECTORS, m)
    yield Case("cond v2", lambda x: tf.cond(positive(x), lambda: x + 1, lambda: x * 2), VECTORS, m)
    yield Case("while v1", lambda x: old(lambda: _loop(x)), SCALARS, m)
    yield Case("while v2", lambda x: _loop(x), SCALARS, m)
    yield Case("solve", lambda x: tf.linalg.svd(x, compute_uv=False), MATRICES, m)
    strings = {
        "length": tf.strings.length,
        "upper": tf.strings.upper,
        "join": lambda x: tf.strings.join([x, "!"]),
        "hash": lambda x: tf.strings.to_hash_bucket_fast(x, 100),
        "replace": lambda x: tf.strings.regex_replace(x, "[aeiou]", "*"),
        "substring": lambda x: tf.strings.substr(tf.strings.join([x, "-----"]), 0, 4, unit="UTF8_CHAR"),
    }
    for name, build in strings.items():
        yield Case(f"string {name}", build, WORDS, m, tf.string)
    yield Case("string to number", tf.strings.to_number, ["1", "2.5", "-3"], m, tf.string)
    yield Case("split", lambda x: tf.strings.split([x]).values, WORDS, o, tf.string)
    yield Case("boolean mask", lambda x: tf.boolean_mask(x, x > 0), VECTORS, o)
    yield Case("where", lambda x: tf.where(x > 0), VECTORS, o)
    yield Case("unique", lambda x: tf.unique(tf.floor(x))[0], VECTORS, o)
    yield Case("count of words", lambda x: tf.size(tf.strings.split([x]).values), WORDS, m, tf.string)
    yield Case("mask and sum", lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)), VECTORS, m)


def _loop(x: Any) -> Any:
    return tf.while_loop(lambda i, a: a < 100.0, lambda i, a: (i + 1, tf.abs(a) * 2.0 + 1.0), [0, x])[1]


CASES = list(_cases())
_ANY_RANK = {
    "add", "exp", "select", "sum", "argmax", "concat", "top k", "scalar", "integers", "lists", "cond v1", "cond v2",
    "while v2", "string length", "string upper", "split", "count of words", "shape", "size",
}  # fmt: skip
RUNS = [(case, True) for case in CASES] + [(case, False) for case in CASES if case.name in _ANY_RANK]
"""Each graph with the shape of its placeholder; some also without one, which the cells then tell."""
