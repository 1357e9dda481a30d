# ruff: noqa: F403, F405
"""The BigDL snippets of the Orca document, and its classes under BigDL's names; only the imports are changed."""

from __future__ import annotations

import numpy as np
import pytest

from orca import XShards
from orca.bigdl.nn.criterion import *
from orca.bigdl.nn.layer import *
from orca.bigdl.optim.optimizer import *
from orca.bigdl.util.common import *
from orca.context import Context
from orca.estimator import Estimator

rng = np.random.default_rng(0)
FEATURES = rng.normal(size=(22, 2)).astype("f4")
LABELS = (FEATURES @ np.array([[1.0, -2.0], [0.5, 1.0]], "f4") + 1).astype("f4")


def frame_of(session):
    import pyarrow as pa

    columns = {"features": list(FEATURES), "label": list(LABELS)}
    return session.createDataFrame(pa.table(columns)).repartition(3)


def as_kinds(context):
    yield "arrays", {"x": FEATURES, "y": LABELS}
    yield "shards", XShards.partition({"x": FEATURES, "y": LABELS})
    if context.runtime == "spark":
        yield "frame", frame_of(context.spark)


def test_the_snippet_trains_and_predicts_on_every_runtime(context: Context):
    for kind, df in as_kinds(context):
        linear_model = Sequential().add(Linear(2, 2))
        mse_criterion = MSECriterion()
        est = Estimator.from_bigdl(model=linear_model, loss=mse_criterion, optimizer=Adam())

        # distributed model training
        est.fit(df, 1, batch_size=4)

        # distributed model inference
        result_df = est.predict(df)

        expected = est.get_model().forward(FEATURES)
        if kind == "frame":
            rows = result_df.select("features", "prediction").collect()
            assert result_df.columns == ["features", "label", "prediction"]
            computed = {tuple(np.float32(row["features"])): row["prediction"] for row in rows}
            result = np.array([computed[tuple(row)] for row in FEATURES])
        else:
            result = result_df if kind == "arrays" else result_df.to_numpy()["prediction"]
        assert est.step == 6
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=kind)


@pytest.mark.spark
def test_the_snippet_reads_a_parquet_file_of_a_spark_session(spark_session, tmp_path):
    from orca import init_orca_context
    from tests.conftest import SLOTS

    init_orca_context(runtime="spark", cores=SLOTS)
    path = str(tmp_path / "data.parquet")
    frame_of(spark_session).write.parquet(path)
    est = Estimator.from_bigdl(model=Sequential().add(Linear(2, 2)), loss=MSECriterion(), optimizer=Adam(), workers=2)
    df = spark_session.read.parquet(path)
    est.fit(df, 1, batch_size=4)
    assert est.predict(df).count() == len(FEATURES)


@pytest.mark.spark
def test_an_rdd_of_samples_trains_predicts_and_is_evaluated(spark_session, tmp_path):
    from orca import init_orca_context
    from tests.conftest import SLOTS

    init_orca_context(runtime="spark", cores=SLOTS)
    samples = [Sample.from_ndarray(x, y) for x, y in zip(FEATURES, LABELS, strict=True)]
    rdd = spark_session.sparkContext.parallelize(samples, 3)
    model = Sequential().add(Linear(2, 2))
    optimizer = Optimizer(
        model=model, training_rdd=rdd, criterion=MSECriterion(), optim_method=SGD(0.1), end_trigger=MaxEpoch(20),
        batch_size=6,
    )  # fmt: skip
    optimizer.set_validation(batch_size=6, val_rdd=rdd, trigger=EveryEpoch(), val_method=[MAE(), Loss(MSECriterion())])
    summary = TrainSummary(str(tmp_path), "linear")
    optimizer.set_train_summary(summary)
    trained = optimizer.optimize()
    assert trained is model
    assert len(summary.read_scalar("Loss")) == 80
    errors, loss = trained.evaluate(rdd, 6, [MAE(), Loss(MSECriterion())])
    expected = trained.forward(FEATURES)
    assert errors.result == pytest.approx(np.abs(expected - LABELS).mean(), abs=1e-5)
    assert str(loss) == f"Evaluated result: {loss.result}, total_num: 22, method: Loss"
    assert loss.result < 0.2
    predicted = trained.predict(rdd)
    np.testing.assert_allclose(np.stack(predicted.collect()), expected, atol=1e-5)
    assert trained.predict_class(rdd).collect() == list(expected.argmax(axis=1) + 1)
