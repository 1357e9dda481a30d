"""Tables of other libraries: polars, DuckDB, Arrow readers and datasets equal the same rows from pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch
from torch import nn

from orca import Estimator, XShards
from orca.context import Context
from orca.errors import ColumnError, DataError
from orca.shards.adapters.registry import adapt
from tests.programs import run

polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

COLUMNS = {"feature_cols": ["a", "b"], "label_cols": "label"}
KINDS = ("polars", "duckdb", "reader", "dataset")


def frame_of(rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=rows).astype("f4"), "b": rng.normal(size=rows).astype("f4")})
    return frame.assign(label=(frame.a + frame.b > 0).astype("i8"), name=[f"row {row}" for row in range(rows)])


def convert(kind: str, frame: pd.DataFrame, folder) -> object:
    """Return the rows of a frame as another kind of data."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if kind == "polars":
        return polars.from_arrow(table)
    if kind == "duckdb":
        return duckdb.from_arrow(table)
    if kind == "reader":
        return table.to_reader(max_chunksize=70)
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    return pyarrow.dataset.dataset(folder)


def to_table(data: object) -> pa.Table:
    return data if isinstance(data, pa.Table) else pa.RecordBatchReader.from_stream(data).read_all()


def estimator(**more) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: nn.Linear(2, 2),
        optimizer=torch.optim.SGD,
        loss=nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        config={"lr": 0.1},
        seed=3,
        **{"workers": 2, **more},
    )


def test_fit_evaluate_and_predict_equal_pandas(context: Context, tmp_path):
    frame = frame_of()
    reference = estimator()
    history = reference.fit(frame, epochs=2, batch_size=32, validation_data=frame, **COLUMNS)
    scores = reference.evaluate(frame, **COLUMNS)
    predictions = np.stack(reference.predict(frame, feature_cols=["a", "b"])["prediction"])
    for kind in KINDS if context.runtime == "local" else KINDS[:3]:
        est = estimator()
        again = est.fit(
            convert(kind, frame, tmp_path),
            epochs=2,
            batch_size=32,
            validation_data=convert(kind, frame, tmp_path),
            **COLUMNS,
        )
        assert again["loss"] == history["loss"], kind
        assert again["val_accuracy"] == history["val_accuracy"], kind
        assert est.evaluate(convert(kind, frame, tmp_path), **COLUMNS) == scores, kind
        data = convert(kind, frame, tmp_path)
        predicted = est.predict(data, feature_cols=["a", "b"])
        assert type(predicted) is (pa.Table if kind == "dataset" else type(data))
        table = to_table(predicted)
        assert table["name"].to_pylist() == list(frame.name)
        np.testing.assert_array_equal(np.array(table["prediction"].to_pylist()), predictions, err_msg=kind)


def test_weights_beside_the_rows_and_in_a_column_are_the_same(local: Context):
    frame = frame_of(64).assign(weight=np.linspace(0.1, 2, 64))
    losses = [
        estimator().fit(polars.from_pandas(frame), epochs=1, batch_size=16, sample_weight=weights, **COLUMNS)["loss"]
        for weights in ("weight", frame.weight.to_numpy())
    ]
    assert losses[0] == losses[1]


def test_a_stream_without_rows_and_a_missing_column_are_reported(local: Context):
    empty = polars.from_pandas(frame_of(3).head(0))
    with pytest.raises(DataError, match="data= has no rows"):
        estimator().fit(empty, batch_size=16, **COLUMNS)
    with pytest.raises(ColumnError, match=r"feature_cols='aa' is not in data=.*Did you mean 'a'"):
        estimator().fit(polars.from_pandas(frame_of(3)), feature_cols=["aa"], label_cols="label")
    with pytest.raises(DataError, match="its labels are part of it, not y="):
        estimator().fit(polars.from_pandas(frame_of(3)), np.zeros(3), feature_cols=["a"])


def test_text_of_polars_stays_with_its_rows_in_shards(local: Context):
    frame = polars.from_pandas(frame_of(10))
    shards = XShards.partition(pa.table(frame), 2)
    assert shards.to_numpy()["name"].to_pylist() == frame["name"].to_list()


def test_adapters_of_built_in_kinds_are_found_by_their_class(tmp_path):
    names = {kind: type(adapt(convert(kind, frame_of(3), tmp_path))).__name__ for kind in KINDS}
    assert set(names.values()) == {"ArrowStreamAdapter"}
    assert type(adapt(frame_of(3))).__name__ == "FrameAdapter"
    assert type(adapt(pa.table({"a": [1]}))).__name__ == "TableAdapter"
    assert type(adapt([1, 2])).__name__ == "ArraysAdapter"
    assert type(adapt(lambda config: None)).__name__ == "CreatorAdapter"


@pytest.mark.slow
def test_a_stream_is_held_once_and_a_polars_frame_once_more():
    output = run("""
        import ctypes
        import numpy as np, pyarrow as pa, polars, torch
        from torch import nn
        from orca import Estimator, init_orca_context
        from tests.memory import Peak, family_pss

        class Narrow(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = nn.Linear(1, 2)
            def forward(self, x):
                return self.last(x.mean(dim=1, keepdim=True))

        init_orca_context(cores=2)
        est = Estimator.from_torch(model=Narrow, optimizer=torch.optim.SGD, loss=nn.CrossEntropyLoss(),
                                   config={"lr": 0.01}, workers=2, seed=0)
        rows, width = 65536, 1024
        kind = pa.list_(pa.float32(), width)

        def batches(count=rows, size=4096):
            rng = np.random.default_rng(0)
            for low in range(0, count, size):
                part = rng.random((size, width), dtype="f4")
                features = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), width)
                yield pa.record_batch({"features": features, "label": pa.array(np.zeros(size, "i8"))})

        schema = pa.schema({"features": kind, "label": pa.int64()})
        est.fit(pa.RecordBatchReader.from_batches(schema, batches(4096)), epochs=1, batch_size=1024)
        size = rows * width * 4
        base = family_pss()
        with Peak() as watch:
            est.fit(pa.RecordBatchReader.from_batches(schema, batches()), epochs=2, batch_size=1024)
        print("reader", (watch.peak - base) / size)
        # In one chunk, as polars makes it when it exports a stream, and with the freed chunks returned to the system.
        frame = polars.from_arrow(pa.Table.from_batches(batches(), schema)).rechunk()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        base = family_pss()
        with Peak() as watch:
            est.fit(frame, epochs=2, batch_size=1024)
        print("polars", (watch.peak - base) / size)
    """)
    ratios = {line.split()[0]: float(line.split()[1]) for line in output.splitlines() if line.startswith(("r", "p"))}
    print(ratios)
    assert ratios["reader"] <= 1.3
    assert ratios["polars"] <= 1.3
