"""Every argument of every public call is checked on the driver, before anything starts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from orca import Estimator, XShards, data, init_orca_context
from orca.context import Context
from orca.errors import ArgumentError, UnknownArgumentError, WorkerError
from tests.orca.wrong_values import SEED, SHARED, Call, Case, arguments_of, count_of, extra, mistakes

X = np.linspace(-1, 1, 24, dtype="f4").reshape(8, 3)
Y = X.sum(axis=1)
FRAME = pd.DataFrame({"a": np.arange(8.0), "b": np.arange(8.0), "c": np.arange(8)})
NAMES = extra([None], [b"x"], [1.5], {"a"})
NO_NAMES = extra([None], [b"x"], [1.5], {"a"}, right="None, empty list")
PATH = extra("\0", "/", "s3://", right="text")


def creator(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(3, 1)


def make(**changes: Any) -> Estimator:
    optimizer: Any = torch.optim.SGD
    arguments = {"model": nn.Linear(3, 1), "optimizer": optimizer, "loss": nn.MSELoss(), "config": {"lr": 0.1}}
    return Estimator.from_torch(**{**arguments, **changes})


def fit(**changes: Any) -> Any:
    if {"feature_cols", "label_cols"} & set(changes):
        # Columns are named where the data has some.
        return make().fit(**{"data": FRAME, "feature_cols": ["a", "b"], "label_cols": "c", **changes})
    return make(model_dir="unused").fit(**{"data": X, "y": Y, **changes})


def evaluate(**changes: Any) -> Any:
    if {"feature_cols", "label_cols"} & set(changes):
        return make().evaluate(**{"data": FRAME, "feature_cols": ["a", "b"], "label_cols": "c", **changes})
    return make().evaluate(**{"data": X, "y": Y, **changes})


def score(**changes: Any) -> Any:
    if {"feature_cols", "label_cols"} & set(changes):
        return make().score(**{"data": FRAME, "feature_cols": ["a", "b"], "label_cols": "c", **changes})
    return make().score(**{"data": X, "y": Y, **changes})


def predict(**changes: Any) -> Any:
    return make().predict(**{"data": FRAME, "feature_cols": ["a", "b", "c"], **changes})


def shards() -> XShards:
    return XShards.partition(FRAME, num_shards=2)


ROWS = {
    "data": extra(right="array"),
    "y": extra(True, right="None, integer, negative, zero, huge, array"),
    "feature_cols": extra([None], [b"x"], [1.5], [], {"a"}),
    "label_cols": extra([None], [b"x"], [1.5], {"a"}, right="empty list"),
    "sample_weight": extra(5, {"a": 1}, {1}, np.float32(1), right="None, array"),
}
OBJECT = extra(right="None")

TORCH = [
    Call(
        "fit",
        Estimator.fit,
        fit,
        {
            **ROWS,
            "initial_epoch": extra(right="zero"),
            "max_failures": extra(right="zero"),
            "min_workers": extra(5),
            "validation_data": extra(right="None, array"),
            "callbacks": extra([None], [5], ["no"], [type], right="None, empty list"),
            "class_weight": extra({"a": 1}, {None: 1}, {0: "x"}, {0: -1}, {0: float("nan")}, {0.5: 1}, {-1: 1}),
            "clip_norm": extra("1", right=""),
            "clip_value": extra(("a", "b"), (None, 1), (2, 1), (1,), (1, 2, 3), "x"),
            "checkpoint_trigger": extra("often", right="None, integer"),
            "validation_trigger": extra("often", right="None"),
            "resume": extra("/nowhere/at/all", right="None"),
            "verbose": extra(3, right="zero, True"),
            "train_resize_batch_num": extra("x"),
            "shuffle": extra("no", "Global"),
            "terminate_on_nan": extra("no"),
        },
    ),
    Call("evaluate", Estimator.evaluate, evaluate, ROWS),
    Call("score", Estimator.score, score, ROWS),
    Call(
        "predict",
        Estimator.predict,
        predict,
        {
            "data": extra(right="array"),
            "feature_cols": extra([None], [b"x"], [1.5], []),
            "output_cols": extra(5, [], [5], ["a", "a"], [""], right="text"),
            "accelerator": extra("openvin", choices=True),
        },
    ),
    Call(
        "from_torch",
        Estimator.from_torch,
        make,
        {
            **SHARED,
            "model": extra(int, lambda a, b: None, 5, nn.Bilinear),
            "optimizer": extra("adam", int, lambda: None, lambda a, b, c: None, right="None"),
            "loss": extra("mse", int, lambda a, b, c: None, lambda: 5, nn.CosineEmbeddingLoss(), right="None"),
            "scheduler_creator": extra(lambda: None, lambda a, b, c: None),
            "scheduler_step": extra("batch", "step", "week", choices=True),
            "config": extra({"lr": "x"}, {"momentum": None}, 5, "x", [1]),
            "backend": extra([], "torch", "torch_distribute", choices=True),
            "precision": extra("fp8", choices=True),
            "train_step": extra(lambda: None, lambda a, b: None),
        },
    ),
]
BACKEND_OPTIONS = [
    ({"compression": "fp8"}, "compression"),
    ({"compression": []}, "compression"),
    ({"sharded": "no"}, "sharded"),
    ({"sharded": 1}, "sharded"),
    ({"backend": "parameter_server", "mode": "later"}, "mode"),
    ({"backend": "parameter_server", "mode": []}, "mode"),
    ({"backend": "parameter_server", "mode": "async", "staleness": "x"}, "staleness"),
    ({"backend": "parameter_server", "mode": "async", "servers": 1.5}, "servers"),
    ({"backend": "parameter_server", "mode": "async", "servers": None}, "servers"),
    ({"optimzer": torch.optim.SGD}, "optimzer"),
]
BACKEND = Call(
    "from_backend",
    Estimator.from_backend,
    lambda **changes: Estimator.from_backend(
        **{"name": "torch.torch_distributed", "model": nn.Linear(3, 1), **changes}
    ),
    {**SHARED, "name": extra("torch", "torch.no", "tourch.horovod", choices=True)},
)


def on_estimator(name: str, right: dict[str, Any], extras: dict[str, Any] | None = None) -> Call:
    """Return the call of a method of a new estimator."""
    run = lambda **changes: getattr(make(), name)(**{**right, **changes})  # noqa: E731
    return Call(name, getattr(Estimator, name), run, extras or {})


STATES = [
    on_estimator("save", {}, {"path": PATH}),
    on_estimator("save_weights", {}, {"path": PATH}),
    on_estimator("save_checkpoint", {}, {"path": PATH}),
    on_estimator("load", {"path": "missing"}, {"path": extra("\0", choices=True)}),
    on_estimator("load_weights", {"path": "missing"}, {"path": extra("\0", choices=True)}),
    on_estimator("load_checkpoint", {"path": "missing"}, {"path": extra("\0", choices=True)}),
    on_estimator("load_orca_checkpoint", {"path": "missing"}, {
        "path": extra(choices=True), "version": extra("x", right="zero, integer"), "prefix": extra(right="text"),
    }),
    on_estimator("export", {"kind": "onnx", "path": "unused", "example": X}, {
        "kind": extra(choices=True), "path": PATH, "example": extra(right="None, empty list, empty dict, array"),
    }),
    on_estimator("set_l2_norm_gradient_clipping", {}, {"clip_norm": extra(right="None")}),
    on_estimator("set_constant_gradient_clipping", {"min": -1, "max": 1}, {
        "min": extra(2, right="negative, zero"), "max": extra(-2, right="zero"),
    }),
    on_estimator("set_tensorboard", {"log_dir": "unused"}, {"log_dir": PATH, "app_name": extra(right="empty text")}),
    on_estimator("get_train_summary", {}, {"tag": extra(right="text")}),
    on_estimator("get_validation_summary", {}, {"tag": extra(right="text")}),
    on_estimator("get_params", {}),
]  # fmt: skip
CONTEXT = Call(
    "init_orca_context",
    init_orca_context,
    init_orca_context,
    {
        "cluster_mode": extra("yarn-no", choices=True),
        "runtime": extra([], "sparc", [1], choices=True),
        "cores": extra("x", "0", "-1", "1.5", "\N{SUPERSCRIPT TWO}"),
        "memory": extra("lots", "4x", "0g", "-1g", 4),
        "num_nodes": extra(5),
    },
)


def on_shards(name: str, right: Any, extras: dict[str, Any] | None = None) -> Call:
    """Return the call of a method of XShards of DataFrames; `right` are its arguments, or returns them."""

    def run(**changes: Any) -> Any:
        target: Any = XShards if isinstance(inspect.getattr_static(XShards, name), staticmethod) else shards()
        return getattr(target, name)(**{**(right() if callable(right) else right), **changes})

    return Call(f"XShards.{name}", getattr(XShards, name), run, extras or {})


NUM_SHARDS = extra("3", 1.5, [3], float("nan"), 9, 10**9)
XSHARDS = [
    on_shards(
        "partition", {"data": X}, {"data": extra(right="empty list, empty dict, array"), "num_shards": NUM_SHARDS}
    ),
    on_shards("from_shards", {"shards": [X]}, {"shards": extra(5, "ab")}),
    on_shards("from_pandas", {"frame": FRAME}, {"num_shards": NUM_SHARDS}),
    on_shards("from_arrow", {"table": pa.Table.from_pandas(FRAME)}, {"table": extra(FRAME), "num_shards": NUM_SHARDS}),
    on_shards("from_spark_df", {"frame": FRAME}, {"columns": extra(right="text, integer, zero, negative, huge")}),
    on_shards("from_ray_dataset", {"dataset": FRAME}),
    on_shards("from_rdd", {}),
    on_shards("load_pickle", {"path": "missing"}, {"path": extra("\0", choices=True), "minPartitions": extra("x")}),
    on_shards("take", {"count": 1}, {"count": extra("x", right="zero")}),
    on_shards("head", {"count": 1}, {"count": extra("x", right="zero")}),
    on_shards("inspect", {"fn": len}, {"fn": extra(lambda: 0)}),
    on_shards("walk", {"fn": len}, {"fn": extra(lambda: 0)}),
    on_shards("transform_shard", {"fn": len}, {"fn": extra(lambda: 0)}),
    on_shards("transform_with_index", {"step": len}, {"step": extra(lambda one: 0)}),
    on_shards("select", {"columns": "a"}, {"columns": NAMES}),
    on_shards("repartition", {"num_partitions": 2}, {"num_partitions": extra("3", 1.5, 9, 10**9)}),
    on_shards("partition_by", {"cols": "a"}, {"cols": NAMES, "num_partitions": extra("3", 10**9)}),
    on_shards("sort_values", {"col_names": "a"}, {"col_names": NAMES, "ascending": extra("no", [True, "no"], [1])}),
    on_shards(
        "group_by",
        {"columns": "a"},
        {"columns": NO_NAMES, "agg": extra(right="None, text, lambda, type, empty list, empty dict, empty text")},
    ),
    on_shards(
        "merge",
        lambda: {"right": shards()},
        {"right": extra(FRAME), "how": extra("cross", "sideways", choices=True), "on": NAMES},
    ),
    on_shards("zip", {"other": None}, {"other": extra(FRAME)}),
    on_shards("sample", {"frac": 0.5}, {"frac": extra(1.1, -0.1, right="zero, True"), "seed": SEED}),
    on_shards(
        "random_split",
        {"weights": [0.5, 0.5]},
        {"weights": extra([], [0.5, -1], ["a"], [0, 0], right=""), "seed": SEED},
    ),
    on_shards("drop_missing_value", {}, {"columns": NAMES}),
    on_shards("describe", {}, {"columns": NAMES}),
    on_shards("max_values", {"columns": "a"}, {"columns": NAMES}),
    on_shards("get_null_sum", {}, {"columns": NAMES}),
    on_shards(
        "assembleFeatureLabelCols", {"featureCols": "a", "labelCols": "b"}, {"featureCols": NAMES, "labelCols": NAMES}
    ),
    on_shards(
        "to_features",
        {"feature_cols": "a", "label_cols": "b"},
        {"feature_cols": NAMES, "label_cols": extra(right="empty list"), "weight_col": extra(right="text")},
    ),
    on_shards("save_pickle", {"path": "unused"}, {"path": PATH}),
    on_shards("to_engine", {"engine": "local"}, {"engine": extra("spork", choices=True)}),
]
NOTHING_TO_CHECK = {
    "cache", "uncache", "is_cached", "compute", "free", "release", "handles", "num_partitions", "shard_rows",
    "collect", "first", "to_numpy", "to_pandas", "concat_to_pdf", "split", "deduplicates", "unique", "get_schema",
    "engine", "parts", "stack_feature_labels", "to_spark_df", "to_ray_dataset", "shares_parts",
}  # fmt: skip
"""Methods and properties of XShards without arguments, or that accept anything."""


def reader(name: str, path: str, extras: dict[str, Any]) -> Call:
    function = getattr(data, name)
    return Call(name, function, lambda **changes: function(**{path: "missing.file", **changes}), extras)


def writer(name: str) -> Call:
    function = getattr(data, name)
    run = lambda **changes: function(**{"shards": shards(), "path": "unused", **changes})  # noqa: E731
    return Call(name, function, run, {"path": PATH})


PATHS = extra([5], [None], [], "missing.file", choices=True)
READERS = [
    reader("read_csv", "paths", {
        "paths": PATHS,
        "usecols": extra([None], right="None, text, integer, zero, negative, huge, lambda, type"),
        "dtype": extra({"a": "no"}, right="None, type, empty dict, array"),
        "names": extra("ab", ["a", "a"]),
        "parse_dates": extra([None], right="None, text, empty list"),
        "index_col": extra(right="None, text, integer, zero, negative, huge"),
        "header": extra([-1], right="None, integer, zero, huge"),
        "sep": extra(right="None, text"),
    }),
    reader("read_json", "paths", {"paths": PATHS}),
    reader("read_parquet", "paths", {
        "paths": PATHS, "columns": extra("a", [5.0], right="array"), "filters": extra([("a", "~", 5)], right="None"),
        "storage_options": extra(right="empty dict"),
    }),
    reader("read_images", "paths", {
        "paths": PATHS, "size": extra((1, 2, 3), (0, 1), ("a", "b")), "mode": extra("RGBX", choices=True),
    }),
    reader("read_image_folder", "path", {
        "path": extra(choices=True), "size": extra((1,)), "mode": extra("rgb", choices=True),
    }),
    reader("read_tfrecord", "paths", {
        "paths": PATHS, "features": extra({"a": 5}, {"a": ("no", ())}, {"a": ("f4", "x")}, right="empty dict"),
    }),
    writer("write_parquet"),
    writer("write_tfrecord"),
]  # fmt: skip
ELSEWHERE = {"from_keras", "from_mxnet", "from_openvino", "from_graph", "from_bigdl", "quantize"} | {
    "save_tf_checkpoint", "load_tf_checkpoint",
    "explain", "shutdown", "get_model", "get_state_dict", "clear_gradient_clipping", "set_params",
}  # fmt: skip
"""Methods of an estimator with tests beside those of their framework, and those without arguments of their own."""
CALLS = [*TORCH, BACKEND, *STATES, CONTEXT, *XSHARDS, *READERS]


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, local: Context) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cases", arguments_of(CALLS))
def test_a_wrong_value_is_refused_before_anything_starts(cases: list[Case]):
    assert cases
    assert mistakes(cases) == []


def test_every_public_call_has_cases_and_there_are_at_least_412(capsys: pytest.CaptureFixture[str]):
    public = {name for name in vars(XShards) if not name.startswith("_")}
    assert public - {call.name.partition(".")[2] for call in XSHARDS} == NOTHING_TO_CHECK
    methods = {name for name in vars(Estimator) if not name.startswith("_") and callable(getattr(Estimator, name))}
    assert methods - {call.name for call in CALLS} == ELSEWHERE
    assert set(data.__all__) == {call.name for call in READERS}
    count = count_of(CALLS)
    with capsys.disabled():
        print(
            f"\n{count} wrong values of {sum(len(call.parameters()) for call in CALLS)} arguments of {len(CALLS)} calls"
        )
    assert count >= 412


@pytest.mark.parametrize(("options", "name"), BACKEND_OPTIONS)
def test_an_option_of_a_backend_is_refused_by_name(options: dict[str, Any], name: str):
    with pytest.raises(ArgumentError, match=f"{name}="):
        make(**options)


def test_an_unknown_argument_is_a_type_error_with_a_suggestion():
    est = make()
    wrong_names = {
        "epochs": lambda: est.fit(X, Y, epoch=3),
        "batch_size": lambda: est.evaluate(X, Y, batchsize=3),
        "feature_cols": lambda: est.predict(X, feature_col=["a"]),
        "sample_weight": lambda: est.score(X, Y, sample_weights=Y),
        "workers": lambda: make(worker=2),
        "model_path": lambda: Estimator.from_openvino(modelpath="model.xml"),
    }
    for name, call in wrong_names.items():
        with pytest.raises(UnknownArgumentError, match=f"Did you mean '{name}'") as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ArgumentError)
    with pytest.raises(UnknownArgumentError, match=r"Arguments: data, y, epochs"):
        est.fit(X, Y, zzz=1)


def test_labels_and_epochs_are_not_mixed_up():
    with pytest.raises(ArgumentError, match=r"y=3 is a number of epochs.*epochs=4"):
        make().fit((X, Y), 3, epochs=4)
    with pytest.raises(ArgumentError, match=r"epochs=0"):
        make().fit((X, Y), 0)


def test_numbers_and_flags_of_numpy_are_accepted():
    history = make(workers=np.int64(1), seed=np.int32(3)).fit(
        X, Y, epochs=np.int64(2), batch_size=np.uint8(4), shuffle=np.bool_(False), clip_norm=np.float32(1),
        clip_value=(np.float64(-1), np.int8(1)), terminate_on_nan=np.True_, progress=np.False_,
        validation_freq=np.int16(1),
    )  # fmt: skip
    assert len(history) == 2
    assert XShards.partition(X, num_shards=np.int64(2)).repartition(np.int32(4)).num_partitions() == 4


def test_creators_of_the_wrong_form_name_their_argument():
    class Sized(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()

    with pytest.raises(ArgumentError, match=r"model= is the class Sized, which needs width=: give config"):
        make(model=Sized)
    with pytest.raises(ArgumentError, match=r"model= has the parameters \(a, b\); expected a function fn\(config\)"):
        make(model=lambda a, b: None)
    with pytest.raises(ArgumentError, match=r"config={'lr': 'x'}: SGD expects a number"):
        make(config={"lr": "x"})
    with pytest.raises(ArgumentError, match=r"scheduler_step='batch' needs a scheduler"):
        make(scheduler_step="batch")
    for argument, wrong in {"model": lambda config: 5, "optimizer": lambda model, config: 5}.items():
        # What a creator returns is known only where it runs.
        with pytest.raises(WorkerError, match=f"{argument}= gave a int"):
            make(**{"model": creator, argument: wrong}).fit(X, Y)
