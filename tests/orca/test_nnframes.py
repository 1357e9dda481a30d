"""NNFrames: layers as stages of pyspark.ml pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from orca import init_orca_context
from orca.bigdl.nn.criterion import ClassNLLCriterion, MSECriterion
from orca.bigdl.nn.layer import Linear, LogSoftMax, Reshape, Sequential, Sigmoid, Tanh
from orca.bigdl.optim.optimizer import Adam, EveryEpoch, MaxIteration, Top1Accuracy, TrainSummary, ValidationSummary
from orca.bigdl.util.common import RNG
from orca.errors import ArgumentError, DataError
from tests.conftest import SLOTS

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

from orca.bigdl.nnframes import (
    NNClassifier,
    NNClassifierModel,
    NNEstimator,
    NNModel,
    SeqToMultipleTensors,
    SeqToTensor,
)

rng = np.random.default_rng(0)
FEATURES = rng.normal(size=(60, 4)) * 10 + 3
CLASSES = 1.0 + (FEATURES[:, 0] > FEATURES[:, 1])


@pytest.fixture
def frame(spark_session):
    from pyspark.ml.linalg import Vectors

    init_orca_context(runtime="spark", cores=SLOTS)
    rows = [(Vectors.dense(x), [float(v) for v in x], float(y)) for x, y in zip(FEATURES, CLASSES, strict=True)]
    return spark_session.createDataFrame(rows, ["raw", "features", "label"]).repartition(3).cache()


def classifier(**more):
    RNG().set_seed(3)
    model = Sequential().add(Linear(4, 8)).add(Tanh()).add(Linear(8, 2)).add(LogSoftMax())
    stage = NNClassifier(model, ClassNLLCriterion(), SeqToTensor([4]), workers=2, seed=1, **more)
    return stage.setBatchSize(16).setMaxEpoch(15).setOptimMethod(Adam(0.05))


def columns(frame, *names):
    rows = frame.select(*names).collect()
    return [[row[name] for row in rows] for name in names]


def test_a_pipeline_with_a_scaler_is_fitted_applied_saved_and_loaded(frame, tmp_path):
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import MinMaxScaler

    scaler = MinMaxScaler(inputCol="raw", outputCol="scaled")
    pipeline = Pipeline(stages=[scaler, classifier().setFeaturesCol("scaled")])
    fitted = pipeline.fit(frame)
    result = fitted.transform(frame)
    labels, predictions = columns(result, "label", "prediction")
    assert set(predictions) == {1.0, 2.0}
    assert np.mean(np.equal(labels, predictions)) > 0.9
    assert dict(result.dtypes)["prediction"] == "double"

    path = str(tmp_path / "pipeline")
    fitted.save(path)
    loaded = PipelineModel.load(path)
    assert isinstance(loaded.stages[1], NNClassifierModel)
    assert loaded.stages[1].uid == fitted.stages[1].uid
    raw, again = columns(loaded.transform(frame), "raw", "prediction")
    before = dict(zip(map(tuple, columns(result, "raw")[0]), predictions, strict=True))
    assert again == [before[tuple(row)] for row in raw]
    with pytest.raises(DataError, match=r"NNModel\.save"):
        NNModel.load(path + "/stages/" + sorted(p.name for p in (tmp_path / "pipeline" / "stages").iterdir())[0])


def test_an_estimator_trains_on_several_inputs_and_param_maps_override_params(frame):
    from pyspark.sql.functions import array, col

    RNG().set_seed(1)
    model = Sequential().add(Linear(4, 2))
    targets = frame.withColumn("label", array(col("features")[0] * 2, col("features")[1] - 1))
    stage = NNEstimator(model, MSECriterion(), [4], [2], workers=2, seed=1).setBatchSize(30).setMaxEpoch(1)
    stage.setLearningRate(1e-3).setPredictionCol("output")
    first = stage.fit(targets)
    assert isinstance(first, NNModel)
    assert first.getPredictionCol() == "output"
    inputs, outputs = columns(first.transform(targets), "features", "output")
    np.testing.assert_allclose(outputs, first.getModel().forward(np.float32(inputs)), rtol=1e-4, atol=1e-4)
    longer = stage.fit(targets, {stage.maxEpoch: 5, stage.learningRate: 1e-2})
    moved = [np.abs(m.getModel().get_weights()[0] - model.get_weights()[0]).max() for m in (first, longer)]
    assert 0 < moved[0] < moved[1]
    assert stage.getMaxEpoch() == 1

    parts = SeqToMultipleTensors([[3], [1]])
    left, right = Linear(3, 2)(), Linear(1, 2)()
    from orca.bigdl.nn.layer import CAddTable, Model

    two = Model([left, right], [CAddTable()([left, right])])
    fitted = NNEstimator(two, MSECriterion(), parts, [2]).setBatchSize(30).setMaxEpoch(1).fit(targets)
    assert np.shape(columns(fitted.transform(targets), "prediction")[0]) == (60, 2)


def test_validation_summaries_clipping_and_end_triggers_reach_the_training(frame, tmp_path):
    train, validation = TrainSummary(str(tmp_path), "app"), ValidationSummary(str(tmp_path), "app")
    stage = classifier().setEndWhen(MaxIteration(6)).setTrainSummary(train).setValidationSummary(validation)
    stage.setValidation(EveryEpoch(), frame, [Top1Accuracy()], 16).setGradientClippingByL2Norm(0.1)
    stage.setCheckpoint(str(tmp_path / "checkpoints"), EveryEpoch())
    stage.fit(frame)
    assert [step for step, _, _ in train.read_scalar("Loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _, _ in validation.read_scalar("Top1Accuracy")] == [4, 6]
    assert list((tmp_path / "checkpoints").iterdir())


def test_a_single_output_is_decided_by_a_threshold(frame):
    layer = Sequential().add(Linear(4, 1)).add(Sigmoid())
    layer.set_weights([np.array([[1.0, -1.0, 0.0, 0.0]]), np.zeros(1)])
    model = NNClassifierModel(layer, [4])
    inputs, predictions = columns(model.transform(frame), "features", "prediction")
    expected = [float(row[0] > row[1]) for row in inputs]
    assert predictions == expected
    assert set(columns(model.setThreshold(1.0).transform(frame), "prediction")[0]) == {0.0}


def test_wrong_stages_are_refused():
    with pytest.raises(ArgumentError, match="model='net'"):
        NNEstimator("net", MSECriterion())
    with pytest.raises(ArgumentError, match="criterion"):
        NNClassifier(Linear(2, 2), "mse")
    with pytest.raises(ArgumentError, match="an optim method"):
        NNClassifier(Linear(2, 2), ClassNLLCriterion()).setOptimMethod("adam")
    with pytest.raises(ArgumentError, match="feature_preprocessing"):
        NNModel(Reshape([4]), 4)
    with pytest.raises(ArgumentError, match="batchSize=0"):
        NNModel(Reshape([4])).setBatchSize(0)
