"""`TFDataset`: distributed rows with the placeholders that they are fed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as v1

from orca.backends.graph import default_graph
from orca.context import current
from orca.core.arguments import check_count, check_number, wrong
from orca.errors import ArgumentError, UnknownArgumentError, suggest
from orca.shards import records
from orca.shards.adapters.base import Checks, Form
from orca.shards.adapters.batches import BatchesAdapter
from orca.shards.adapters.registry import adapt
from orca.shards.tree import leaves, tree_map
from orca.shards.xshards import XShards
from orca.tfpark.metas import TensorMeta, column_metas, meta_of, meta_of_spec, metas_of, placeholder_of, unmarked

COLLECTION = "orca_tf_datasets"
_SHARED = (
    "auto_shard_files", "batch_outside", "hard_code_batch_size", "inter_threads", "intra_threads", "memory_type",
    "remove_checking", "sequential_order", "shuffle",
)  # fmt: skip
"""Arguments of the constructors in Analytics Zoo; only those about the order of rows have an effect."""


@dataclass(frozen=True)
class Parts:
    """The rows of a dataset for training and for validation, with the arguments that `fit` reads both with."""

    data: Any
    validation: Any
    columns: dict[str, Any]


class TFDataset:
    """Rows, and the placeholders that `tensors` creates for them in the current graph.

    Create one with a ``from_*`` method. ``batch_size`` is for training, ``batch_per_thread`` for prediction.
    """

    def __init__(
        self,
        data: Any,
        features: Any,
        labels: Any = None,
        *,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        validation_data: Any = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        shuffle: bool = True,
    ) -> None:
        if batch_size > 0 and batch_per_thread > 0:
            raise ArgumentError("batch_size and batch_per_thread should not be set simultaneously.")
        self.data, self.validation_data = data, validation_data
        self.features, self.labels = features, labels
        self.batch_size = None if batch_size < 0 else check_count("batch_size", batch_size)
        self.batch_per_thread = None if batch_per_thread < 0 else check_count("batch_per_thread", batch_per_thread)
        self.columns: dict[str, Any] = {} if feature_cols is None else {"feature_cols": list(feature_cols)}
        self.label_columns: dict[str, Any] = {} if label_cols is None else {"label_cols": list(label_cols)}
        self.shuffle = shuffle
        self._placeholders: Any = None
        self._tensors: Any = None

    # -- tensors

    @property
    def tensors(self) -> Any:
        """The tensors of a batch: a list of all of them, or (features, labels)."""
        self._create()
        features, labels = self._tensors
        if self.labels is not None:
            return features, labels
        return [tensor for _, tensor in leaves(features)]

    @property
    def feature_tensors(self) -> Any:
        """The tensors of the features."""
        self._create()
        return self._tensors[0]

    @property
    def label_tensors(self) -> Any:
        """The tensors of the labels; None if the dataset has none."""
        self._create()
        return self._tensors[1]

    @property
    def placeholders(self) -> tuple[Any, Any]:
        """The placeholders of features and labels, which `tensors` are computed from."""
        self._create()
        features, labels = self._placeholders
        return features, [] if labels is None else labels

    def _create(self) -> None:
        if self._placeholders is not None:
            return
        default_graph.begin()
        trees = (self.features, self.labels)
        self._placeholders = tuple(None if tree is None else tree_map(placeholder_of, tree) for tree in trees)
        self._tensors = tuple(
            None if tree is None else tree_map(unmarked, tree, made)
            for tree, made in zip(trees, self._placeholders, strict=True)
        )
        v1.add_to_collection(COLLECTION, self)

    # -- rows

    @property
    def parts(self) -> Parts:
        """The rows for training, and those for validation."""
        return Parts(self.data, self.validation_data, {**self.columns, **self.label_columns})

    def split(self, share: float, seed: int | None = None) -> Parts:
        """Return the rows with a random share of them for validation."""
        if not 0 < check_number("val_split", share) < 1:
            raise wrong("val_split", share, "a number between 0 and 1")
        if self.validation_data is not None:
            raise ArgumentError("Give one of val_split= and validation rows of the TFDataset, not both.")
        train, validation = self.shards().random_split([1 - share, share], seed)
        return Parts(train, validation, {})

    def shards(self, labelled: bool = True) -> XShards:
        """Return the rows as shards {"x", "y"}, without labels if those are not needed.

        A ``tf.data`` pipeline is read in this process.
        """
        if isinstance(self.data, XShards):
            return self.data
        columns = {**self.columns, **(self.label_columns if labelled else {})}
        need_labels = labelled and self.labels is not None
        form = Form(**columns, need_labels=need_labels, together=False, checks=Checks("US"))
        adapter, engine = adapt(self.data), current().engine
        if isinstance(adapter, BatchesAdapter):
            return adapter.stored(form, engine)
        shards = adapter.shards(form, engine)
        return shards if isinstance(shards, XShards) else shards.shards  # type: ignore[attr-defined]

    # -- constructors

    @classmethod
    def from_rdd(
        cls, rdd: Any, names: Sequence[str] | None = None, shapes: Any = None, types: Any = None,
        batch_size: int = -1, batch_per_thread: int = -1, hard_code_batch_size: bool = False, val_rdd: Any = None,
        features: Any = None, labels: Any = None, **unused: Any,
    ) -> TFDataset:  # fmt: skip
        """Create a dataset of an RDD whose records are lists of arrays, or pairs of features and labels.

        Args:
            rdd: The records.
            names: Names of a record's arrays, with their ``shapes`` and ``types`` (float32 by default).
            features: In place of names: ``(dtype, shape)``, or a list or dict of them, with ``labels`` likewise.
            batch_size: Rows of a training step over all workers.
            batch_per_thread: Rows that a model gets at once in prediction.
            val_rdd: Records to validate with.
        """
        del hard_code_batch_size
        if features is None:
            if not names and not shapes:
                raise ArgumentError("from_rdd needs names=, shapes= and types=, or features=.")
            count = len(names or shapes)
            for argument, values in (("shapes", shapes), ("types", types)):
                if values and len(values) != count:
                    raise wrong(argument, values, f"one for each of the {count} arrays of a record")
            metas: Any = [
                TensorMeta(
                    types[number] if types else v1.float32,
                    tuple(shapes[number]) if shapes else (),
                    names[number] if names else f"list_input_{number}",
                )
                for number in range(count)
            ]
        else:
            metas = metas_of(features)
        label_metas = None if labels is None else metas_of(labels)
        data = records.shards_of(rdd, labels is not None)
        validation = None if val_rdd is None else records.shards_of(val_rdd, labels is not None)
        return cls(
            data,
            metas,
            label_metas,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            validation_data=validation,
            shuffle=_shuffled("from_rdd", unused),
        )

    @classmethod
    def from_ndarrays(
        cls, tensors: Any, batch_size: int = -1, batch_per_thread: int = -1, val_tensors: Any = None, **unused: Any
    ) -> TFDataset:
        """Create a dataset of arrays: features alone, or a tuple (features, labels)."""
        rows, validation = _arrays(tensors), None if val_tensors is None else _arrays(val_tensors)
        features = tree_map(meta_of, rows["x"])
        labels = tree_map(meta_of, rows["y"]) if "y" in rows else None
        sizes: dict[str, Any] = {"batch_size": batch_size, "batch_per_thread": batch_per_thread}
        return cls(
            rows, features, labels, validation_data=validation, shuffle=_shuffled("from_ndarrays", unused), **sizes
        )

    @classmethod
    def from_dataframe(
        cls, df: Any, feature_cols: Sequence[str], labels_cols: Sequence[str] | None = None, batch_size: int = -1,
        batch_per_thread: int = -1, validation_df: Any = None, **unused: Any,
    ) -> TFDataset:  # fmt: skip
        """Create a dataset of columns; each column is a tensor."""
        features = column_metas(df, feature_cols)
        labels = None if labels_cols is None else column_metas(df, labels_cols)
        return cls(
            df,
            features,
            labels,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            validation_data=validation_df,
            feature_cols=feature_cols,
            label_cols=labels_cols,
            shuffle=_shuffled("from_dataframe", unused),
        )

    @classmethod
    def from_tf_data_dataset(
        cls, dataset: Any, batch_size: int = -1, batch_per_thread: int = -1, validation_dataset: Any = None,
        **unused: Any,
    ) -> TFDataset:  # fmt: skip
        """Create a dataset of a ``tf.data.Dataset`` without ``batch`` and ``repeat``."""
        _shuffled("from_tf_data_dataset", unused)  # a pipeline has an order of its own
        spec = dataset.element_spec
        labelled = isinstance(spec, tuple) and len(spec) == 2
        parts = spec if labelled else (spec, None)
        features, labels = (None if part is None else tree_map(meta_of_spec, part) for part in parts)
        sizes: dict[str, Any] = {"batch_size": batch_size, "batch_per_thread": batch_per_thread}
        return cls(dataset, features, labels, validation_data=validation_dataset, **sizes)

    @classmethod
    def from_string_rdd(
        cls, string_rdd: Any, batch_size: int = -1, batch_per_thread: int = -1, **unused: Any
    ) -> TFDataset:
        """Create a dataset of an RDD of text; its tensor has the type ``tf.string``."""
        shuffle = _shuffled("from_string_rdd", unused)
        meta = [TensorMeta(v1.string, (), "list_input_0")]
        data = records.text_shards(string_rdd)
        return cls(data, meta, batch_size=batch_size, batch_per_thread=batch_per_thread, shuffle=shuffle)

    @classmethod
    def from_bytes_rdd(
        cls, bytes_rdd: Any, batch_size: int = -1, batch_per_thread: int = -1, **unused: Any
    ) -> TFDataset:
        """Create a dataset of an RDD of bytes; its tensor has the type ``tf.string``."""
        shuffle = _shuffled("from_bytes_rdd", unused)
        meta = [TensorMeta(v1.string, (), "list_input_0", marked=True)]
        data = records.text_shards(bytes_rdd)
        return cls(data, meta, batch_size=batch_size, batch_per_thread=batch_per_thread, shuffle=shuffle)

    @classmethod
    def from_tfrecord_file(
        cls, sc: Any, file_path: str, batch_size: int = -1, batch_per_thread: int = -1, **unused: Any
    ) -> TFDataset:
        """Create a dataset of the serialized examples in a TFRecord file; parse them with ``tf.io.parse_example``."""
        del sc
        shuffle = _shuffled("from_tfrecord_file", unused)
        values = [record + records.MARK for record in v1.io.tf_record_iterator(file_path)]
        if not values:
            raise ArgumentError(f"file_path={file_path!r} has no records.")
        meta = [TensorMeta(v1.string, (), "list_input_0", marked=True)]
        sizes: dict[str, Any] = {"batch_size": batch_size, "batch_per_thread": batch_per_thread}
        return cls({"x": np.array(values)}, meta, shuffle=shuffle, **sizes)


def _shuffled(constructor: str, more: Mapping[str, Any]) -> bool:
    """Return whether rows are shuffled, from the arguments of Analytics Zoo that all constructors share."""
    check_known(constructor, more, _SHARED)
    return bool(more.get("shuffle", True)) and not more.get("sequential_order", False)


def check_known(call: str, more: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise for arguments that Analytics Zoo does not have either."""
    for name in more:
        if name not in known:
            raise UnknownArgumentError(f"{call}() has no argument {name}=." + suggest(name, known))


def dataset_behind(tensor: Any, dataset: TFDataset | None, argument: str) -> TFDataset:
    """Return the dataset whose placeholders a tensor depends on."""
    if dataset is not None:
        if not isinstance(dataset, TFDataset):
            raise wrong("dataset", dataset, "a TFDataset")
        return dataset
    behind = set(_placeholders_behind(tensor))
    for one in tensor.graph.get_collection(COLLECTION):
        own = {part.op.name for tree in one.placeholders for _, part in leaves(tree)}
        if own & behind:
            return one  # type: ignore[no-any-return]
    raise ArgumentError(
        f"{argument}={tensor.name!r} depends on no placeholder of a TFDataset. Build it from dataset.tensors, or give "
        "dataset= and inputs=."
    )


def _placeholders_behind(tensor: Any) -> list[str]:
    waiting, seen, found = [tensor.op], set(), []
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type == "Placeholder":
            found.append(operation.name)
        waiting += [source.op for source in operation.inputs]
        waiting += list(operation.control_inputs)
    return found


def _arrays(tensors: Any) -> dict[str, Any]:
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return {"x": tree_map(np.asarray, tensors[0]), "y": tree_map(np.asarray, tensors[1])}
    return {"x": tree_map(np.asarray, tensors)}
