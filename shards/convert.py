"""Turns what users pass as data into XShards of {"x", "y"} on the engine of the context.

Types are recognised by their class, so that nothing heavy is imported for data that does not need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orca.errors import ColumnError, DataError, suggest
from orca.shards.columns import Columns, features_and_labels, flat
from orca.shards.engines.base import Engine
from orca.shards.tree import as_arrays, cut_evenly, join_rows, kind_of, leaves, row_count, size_in_bytes
from orca.shards.xshards import XShards

CHUNK_BYTES = 8 << 20
"""Partitions of a Spark DataFrame travel to the ranks in pieces of about this size."""


@dataclass(frozen=True)
class Form:
    """How data has to be read: which columns, whether with labels, and what to call it in messages."""

    argument: str = "data"
    feature_cols: Columns = None
    label_cols: Columns = None
    need_labels: bool = True
    together: bool = True
    """Whether several single-number columns are one matrix or several inputs."""
    creator_arguments: tuple[Any, ...] = ()
    """What a data creator is called with, as far as it takes arguments."""
    pairs: bool = True
    """Whether a pair of arrays is (features, labels)."""
    weights: Any = None
    """How much each row counts: an array beside arrays, or the name of a column."""
    triples: bool = False
    """Whether a tuple of three is (features, labels, weights of rows)."""

    @property
    def weight_col(self) -> str | None:
        return self.weights if isinstance(self.weights, str) else None


def recognise(data: Any) -> str:
    """Name the kind of data: shards, spark, ray, frame, table, torch, tf, mxnet, creator or arrays."""
    if isinstance(data, XShards):
        return "shards"
    for base in type(data).__mro__:
        module, name = base.__module__, base.__name__
        if module.startswith("pyspark.sql") and name == "DataFrame":
            return "spark"
        if module.startswith("ray.data") and name == "Dataset":
            return "ray"
        if module.startswith("torch.utils.data") and name in ("DataLoader", "Dataset"):
            return "torch"
        if module.startswith("tensorflow") and name == "DatasetV2":
            return "tf"
        if module.startswith("mxnet.") and name in ("DataIter", "DataLoader"):
            return "mxnet"
    kind = kind_of(data)
    if kind in ("frame", "table"):
        return kind
    return "creator" if callable(data) and kind == "object" else "arrays"


def to_shards(data: Any, y: Any, engine: Engine, form: Form, parts: int = 1) -> Any:
    """Return the data as XShards of {"x", "y"} on `engine`, checked without touching all rows."""
    kind = recognise(data)
    if kind == "creator":
        return to_shards(created(data, form), y, engine, form, parts)
    if y is not None and kind not in ("arrays", "frame"):
        raise DataError(f"{form.argument}= is a {type(data).__name__}: its labels are part of it, not y=.")
    if form.weights is not None and form.weight_col is None and kind not in ("arrays", "frame", "table"):
        raise DataError(
            f"sample_weight= is a {type(form.weights).__name__}, but {form.argument}= is a {type(data).__name__}: "
            'give the name of a column, or put the weights into the data as the entry "w" beside "x" and "y".'
        )
    if kind == "shards":
        return _from_shards(data, form).to_engine(engine)
    if kind in ("spark", "ray"):
        return _from_cluster(data, kind, engine, form)
    if kind in ("frame", "table"):
        return _put(_from_table(data, y, form), engine, form, parts)
    if kind in ("torch", "tf", "mxnet"):
        return _from_batches(data, kind, engine, form)
    if form.feature_cols is not None and isinstance(data, dict):
        return _put(_columns(data, _choose([str(key) for key in data], form)), engine, form, parts)
    tree = to_tree(data, y, form.argument, form.need_labels, form.weights, form.pairs, form.triples)
    return _put(tree, engine, form, parts)


def to_tree(
    data: Any,
    y: Any = None,
    argument: str = "data",
    need_labels: bool = True,
    weights: Any = None,
    pairs: bool = True,
    triples: bool = False,
) -> Any:
    """Bring arrays into the form {"x": …, "y": …}: fit(x, y), (x, y) and dicts are understood."""
    if isinstance(weights, str):
        raise DataError(f"sample_weight={weights!r} names a column, but {argument}= has none; give an array.")
    if isinstance(data, dict) and "x" in data:
        tree = {key: data[key] for key in ("x", "y", "w") if key in data}
        if y is not None:
            raise DataError(f'Labels were given twice: as y= and as the entry "y" of {argument}=.')
    elif y is not None:
        tree = {"x": data, "y": y}
    elif pairs and isinstance(data, tuple | list) and len(data) == 2:
        tree = {"x": data[0], "y": data[1]}
    elif pairs and triples and isinstance(data, tuple) and len(data) == 3:
        tree = {"x": data[0], "y": data[1], "w": data[2]}
    else:
        tree = {"x": data}
    if need_labels and "y" not in tree:
        raise DataError(
            f'{argument}= has no labels. Give arrays as fit(x, y), as a tuple (x, y) or as {{"x": …, "y": …}}; '
            f"received {_told(data)}."
        )
    if weights is not None:
        tree["w"] = weights
    for name, entry in tree.items():
        if hasattr(entry, "tocsr"):  # some kinds of sparse matrices are dicts as well
            raise DataError(
                f"{name} of {argument}= is a sparse {type(entry).__name__}; sparse input is not supported. "
                "Make it dense with toarray()."
            )
    tree = as_arrays(tree)
    _check_weights(tree.get("w"))
    for name, leaf in leaves(tree):
        if leaf.ndim > 1 and 0 in leaf.shape[1:] and leaf.shape[0]:
            raise DataError(
                f"{name} of {argument}= has shape {leaf.shape}: 0 feature(s) in each row; at least one is required."
            )
        if leaf.dtype == object:
            raise DataError(
                f"{name} of {argument}= has dtype object (rows of different lengths, or not numbers); received "
                f"{_told(data)}. Make it an array of numbers with one shape per row."
            )
    row_count(tree)
    return tree


def add_columns(frame: Any, form: Form, compute: Callable[[Iterator[Any]], Iterator[Any]], like: Any = None) -> Any:
    """A Spark DataFrame with the columns that `compute` makes of its feature columns; computed when needed."""
    from orca.shards.engines.spark_frames import add_columns

    return add_columns(frame, list(dict.fromkeys(flat(form.feature_cols))), compute, like)


def first_rows(frame: Any, form: Form, count: int) -> Any:
    """The first rows of a Spark DataFrame's feature columns as an Arrow table of this process."""
    from orca.shards.engines.spark_frames import first_rows

    return first_rows(frame, list(dict.fromkeys(flat(form.feature_cols))), count)


def check_frame(frame: Any, form: Form) -> None:
    """Raise if a feature column is not in a Spark or pandas DataFrame or an Arrow table."""
    _check_known(form, [str(name) for name in (frame.column_names if kind_of(frame) == "table" else frame.columns)])


def to_frames(data: Any, kind: str, parts: int) -> XShards:
    """Data with named columns as XShards that keep all columns, for predictions beside them."""
    if kind == "ray":
        return XShards.from_ray_dataset(data, as_arrow=True)
    if kind == "shards":
        return data  # type: ignore[no-any-return]
    return XShards.partition(data, max(1, min(parts, row_count(data))))


def check_features(shards: XShards, form: Form) -> None:
    """Raise if a feature column is not there, without moving rows."""
    _check_known(form, next(shards.walk(_look))[0] or [])


def from_frames(shards: XShards, kind: str) -> Any:
    """The reverse of `to_frames`."""
    if kind == "ray":
        return shards.to_ray_dataset()
    return shards if kind == "shards" else shards.to_numpy()


def _put(tree: Any, engine: Engine, form: Form, parts: int) -> XShards:
    rows = row_count(tree)
    if rows == 0 and form.need_labels:
        raise DataError(f"{form.argument}= has no rows.")
    count = max(1, min(max(parts, -(-size_in_bytes(tree) // engine.shard_bytes)), rows))
    return XShards(engine, engine.put(cut_evenly(tree, count)))


def _choose(known: list[str], form: Form) -> Form:
    """Fill in the columns that the predecessor uses by default, or say which there are."""
    features, labels = form.feature_cols, form.label_cols
    if features is None and "features" in known:
        features = ["features"]
    if labels is None and "label" in known and form.need_labels:
        labels = ["label"]
    if features is None or (form.need_labels and labels is None):
        missing = "feature_cols=" if features is None else "label_cols="
        raise ColumnError(
            f"{form.argument}= has named columns: say which to use with {missing}. Columns: {', '.join(known)}."
        )
    return replace(form, feature_cols=features, label_cols=labels)


def _check_known(form: Form, known: list[str]) -> None:
    named = (("feature_cols", form.feature_cols), ("label_cols", form.label_cols), ("sample_weight", form.weight_col))
    for argument, columns in named:
        for name in flat(columns):
            if name not in known:
                raise ColumnError(
                    f"{argument}={name!r} is not in {form.argument}=. Columns: {', '.join(known)}."
                    + suggest(name, known)
                )


def created(creator: Any, form: Form) -> Any:
    """Call a data creator, once and here: what it gives is then shared by all ranks."""
    wanted = [
        parameter
        for parameter in inspect.signature(creator).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    made = creator(*form.creator_arguments[: len(wanted)])
    if made is None or recognise(made) == "creator":
        raise DataError(
            f"The data creator given as {form.argument}= returned {_told(made)}; expected a DataLoader, a dataset, "
            "arrays or anything else that fit takes."
        )
    return made


def _columns(table: Any, form: Form) -> Any:
    made = features_and_labels(table, form.feature_cols, form.label_cols, form.together, form.weight_col)
    if form.weights is not None and form.weight_col is None:
        made["w"] = np.asarray(form.weights)
        _check_weights(made["w"])
    return made


def _from_table(table: Any, y: Any, form: Form) -> Any:
    if kind_of(table) == "frame" and not all(isinstance(name, str) for name in table.columns):
        table = table.rename(columns=str)
    known = [str(name) for name in (table.column_names if kind_of(table) == "table" else table.columns)]
    if y is not None:
        # scikit-learn's way: X is a DataFrame, y stands beside it; all columns are features.
        features = [name for name in known if name != form.weight_col]
        made = _columns(table, replace(form, feature_cols=form.feature_cols or features, label_cols=None))
        return {**made, "y": np.asarray(y)}
    return _columns(table, _choose(known, form))


def _from_shards(shards: XShards, form: Form) -> XShards:
    """Check the form of the first shard where it lies: its rows stay there."""
    keys, kind, told = shards.inspect(_look)
    if kind in ("frame", "table") or form.feature_cols is not None:
        chosen = _choose(keys or [], form)
        _check_known(chosen, keys or [])
        return shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
    if keys is None or "x" not in keys:
        if not form.need_labels:
            return shards
        raise DataError(
            f'{form.argument}= has shards of {told}; expected dicts {{"x": …, "y": …}}. '
            "Use transform_shard to bring them into that form, or give feature_cols= and label_cols=."
        )
    if form.need_labels and "y" not in keys:
        raise DataError(f'The shards of {form.argument}= have no labels: entries {sorted(keys)}, expected "x" and "y".')
    if form.weight_col is not None:
        _check_known(replace(form, feature_cols=None, label_cols=None), keys)
        return shards.transform_shard(_weighted, form.weight_col)
    return shards


def _weighted(shard: Any, name: str) -> Any:
    """A shard with one of its entries as the weights."""
    return {**{key: value for key, value in shard.items() if key in ("x", "y")}, "w": shard[name]}


def _look(shard: Any) -> tuple[list[str] | None, str, str]:
    kind = kind_of(shard)
    if kind in ("frame", "table"):
        return [str(n) for n in (shard.column_names if kind == "table" else shard.columns)], kind, _told(shard)
    keys = [str(key) for key in shard] if isinstance(shard, dict) else None
    if keys is not None and "x" in keys:
        row_count({key: shard[key] for key in ("x", "y", "w") if key in shard})
    return keys, kind, _told(shard)


def _from_cluster(data: Any, kind: str, engine: Engine, form: Form) -> Any:
    """A Spark DataFrame or Ray Dataset: only the columns needed, as Arrow, where they are."""
    known = list(data.columns) if kind == "spark" else list(data.columns() or [])
    chosen = _choose(known, form)
    _check_known(chosen, known)
    wanted = list(dict.fromkeys([*flat(chosen.feature_cols), *flat(chosen.label_cols), *flat(chosen.weight_col)]))
    if kind == "ray":
        shards = XShards.from_ray_dataset(data.select_columns(wanted), as_arrow=True)
        features = shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
        return features.to_engine(engine)
    from orca.shards.engines.spark_frames import pack_frame

    if engine.name != "spark":
        shards = XShards.from_spark_df(data, wanted)
        features = shards.to_features(chosen.feature_cols, chosen.label_cols, chosen.together, chosen.weight_col)
        return features.to_engine(engine)
    # Straight from Arrow to arrays, in pieces, so that no process ever holds a whole partition.
    return pack_frame(data, wanted, lambda table: _columns(table, chosen), CHUNK_BYTES)


def _from_batches(data: Any, kind: str, engine: Engine, form: Form) -> XShards:
    """A dataset of a framework: fetched once, here, and put away shard by shard."""
    if form.weight_col is not None:
        raise DataError(f"sample_weight={form.weight_col!r}: a {type(data).__name__} has no columns to take it from.")
    from orca.shards.adapters import mxnet_data, tf_data, torch_data

    fetched = {"torch": torch_data, "tf": tf_data, "mxnet": mxnet_data}[kind].batches(data)
    parts = None
    for shard in _grouped(fetched, form, engine.shard_bytes):
        made = engine.put([shard])
        parts = made if parts is None else _more(parts, made)
    if parts is None:
        raise DataError(f"{form.argument}= gave no rows.")
    return XShards(engine, parts)


def _grouped(batches: Iterator[Any], form: Form, most: int) -> Iterator[Any]:
    held: list[Any] = []
    size = 0
    for batch in batches:
        pair = tuple(batch) if isinstance(batch, list) else batch
        tree = to_tree(pair, None, form.argument, form.need_labels, pairs=form.pairs, triples=form.triples)
        held.append(tree)
        size += size_in_bytes(tree)
        if size >= most:
            yield join_rows(held)
            held, size = [], 0
    if held:
        yield join_rows(held)


def _more(parts: Any, made: Any) -> Any:
    return parts + made if isinstance(parts, list) else parts.union(made)


def _check_weights(weights: Any) -> None:
    if weights is not None and np.size(weights) != len(weights):
        raise DataError(f"sample_weight= has shape {np.shape(weights)}; expected one number per row.")
    if weights is not None and len(weights) and not np.any(weights):
        raise DataError("sample_weight= is zero for every row, so that there is nothing to learn from.")


def _told(data: Any) -> str:
    if isinstance(data, dict):
        return f"a dict with the keys {sorted(map(str, data))}"
    if isinstance(data, tuple | list):
        return f"a {type(data).__name__} of {len(data)}"
    shape = getattr(data, "shape", None)
    return f"a {type(data).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
