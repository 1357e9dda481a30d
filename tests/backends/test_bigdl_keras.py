"""Layers in the style of Keras 1: shapes, first weights, conventions, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import orca.bigdl.keras.layers as keras
from orca.bigdl.keras.models import Model, Sequential
from orca.bigdl.nn.layer import Linear, Tanh
from orca.bigdl.nn.layer import Model as Loader
from orca.bigdl.util.common import RNG
from orca.errors import ArgumentError, DataError

K = keras
RANDOM = np.random.default_rng(2)
CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [
    (lambda: K.Dense(3, activation="relu"), (4,), (3,)),
    (lambda: K.Dense(3), (5, 4), (5, 3)),
    (lambda: K.Activation("softmax"), (4,), (4,)),
    (lambda: K.Dropout(0.5), (4,), (4,)),
    (lambda: K.Flatten(), (3, 4), (12,)),
    (lambda: K.Reshape((4, -1)), (3, 4), (4, 3)),
    (lambda: K.Permute((3, 1, 2)), (2, 3, 4), (4, 2, 3)),
    (lambda: K.RepeatVector(3), (4,), (3, 4)),
    (lambda: K.Masking(), (3, 4), (3, 4)),
    (lambda: K.Highway("tanh"), (4,), (4,)),
    (lambda: K.MaxoutDense(3), (4,), (3,)),
    (lambda: K.Convolution1D(5, 3, border_mode="same"), (7, 4), (7, 5)),
    (lambda: K.Convolution2D(5, 3, 2, border_mode="same", subsample=(2, 1)), (3, 8, 8), (5, 4, 8)),
    (lambda: K.Convolution2D(5, 3, 2, dim_ordering="tf"), (8, 8, 3), (6, 7, 5)),
    (lambda: K.Convolution3D(2, 2, 3, 4), (1, 4, 4, 4), (2, 3, 2, 1)),
    (lambda: K.AtrousConvolution2D(2, 2, 2, atrous_rate=(2, 1)), (1, 6, 6), (2, 4, 5)),
    (lambda: K.Deconvolution2D(2, 2, 3), (1, 4, 4), (2, 5, 6)),
    (lambda: K.SeparableConvolution2D(4, 3, 3), (2, 6, 6), (4, 4, 4)),
    (lambda: K.LocallyConnected1D(3, 2), (6, 4), (5, 3)),
    (lambda: K.LocallyConnected2D(3, 2, 3), (2, 5, 5), (3, 4, 3)),
    (lambda: K.MaxPooling1D(), (6, 4), (3, 4)),
    (lambda: K.AveragePooling1D(border_mode="same"), (7, 4), (4, 4)),
    (lambda: K.MaxPooling2D((2, 3)), (3, 6, 6), (3, 3, 2)),
    (lambda: K.AveragePooling2D(border_mode="same"), (3, 7, 7), (3, 4, 4)),
    (lambda: K.MaxPooling3D(), (2, 4, 4, 4), (2, 2, 2, 2)),
    (lambda: K.GlobalMaxPooling1D(), (5, 4), (4,)),
    (lambda: K.GlobalAveragePooling2D(), (3, 5, 5), (3,)),
    (lambda: K.ZeroPadding1D(2), (3, 4), (7, 4)),
    (lambda: K.ZeroPadding2D((1, 2)), (3, 4, 4), (3, 6, 8)),
    (lambda: K.Cropping1D(), (5, 3), (3, 3)),
    (lambda: K.Cropping2D(((1, 1), (0, 1))), (2, 5, 5), (2, 3, 4)),
    (lambda: K.UpSampling2D((2, 3)), (2, 3, 3), (2, 6, 9)),
    (lambda: K.SimpleRNN(3), (5, 4), (3,)),
    (lambda: K.LSTM(3, return_sequences=True), (5, 4), (5, 3)),
    (lambda: K.GRU(3, go_backwards=True), (5, 4), (3,)),
    (lambda: K.ConvLSTM2D(2, 3), (3, 2, 4, 4), (2, 4, 4)),
    (lambda: K.Bidirectional(K.LSTM(3, return_sequences=True)), (5, 4), (5, 6)),
    (lambda: K.Bidirectional(K.GRU(3), "sum"), (5, 4), (3,)),
    (lambda: K.TimeDistributed(K.Dense(2)), (5, 4), (5, 2)),
    (lambda: K.BatchNormalization(), (3, 4, 4), (3, 4, 4)),
    (lambda: K.SReLU(), (4,), (4,)),
    (lambda: K.Select(1, -1), (4, 3), (3,)),
    (lambda: K.Narrow(1, 1, 2), (4, 3), (2, 3)),
    (lambda: K.Squeeze(), (1, 3), (3,)),
    (lambda: K.ExpandDim(1), (4,), (1, 4)),
]


@pytest.mark.parametrize(
    ("make", "row", "expected"), CASES, ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else ""
)
def test_layers_know_their_shapes_and_survive_copies_and_files(make: Any, row: Any, expected: Any, tmp_path: Path):
    layer = make()
    layer.input_shape = row
    model, x = Sequential().add(layer), RANDOM.normal(size=(3, *row)).astype(np.float32)
    assert model.get_output_shape() == (None, *expected)
    y = model.forward(x)
    assert y.shape == (3, *expected)
    assert model.backward(x, np.ones_like(y)).shape == x.shape
    y = model.evaluate().forward(x)
    model.saveModel(str(tmp_path / "m"))
    for twin in (cloudpickle.loads(cloudpickle.dumps(model)), Loader.loadModel(str(tmp_path / "m"))):
        assert type(twin) is Sequential
        np.testing.assert_allclose(twin.evaluate().forward(x), y, atol=1e-6)


def test_first_weights_have_the_layouts_and_distributions_of_the_specification():
    RNG().set_seed(3)
    model = Sequential().add(K.Dense(3, input_shape=(4,)))
    weight, bias = model.get_weights()
    assert weight.shape == (3, 4)
    assert not bias.any()
    RNG().set_seed(3)
    Linear(4, 3)
    drawn = RNG().uniform(-np.sqrt(6 / 7), np.sqrt(6 / 7), [3, 4])
    np.testing.assert_allclose(weight, drawn, atol=1e-7)
    shapes = [w.shape for w in Sequential().add(K.Convolution2D(4, 3, 2, input_shape=(2, 6, 6))).get_weights()]
    assert shapes == [(1, 4, 2, 3, 2), (4,)]
    normal = Sequential().add(K.BatchNormalization(input_shape=(4,)))
    np.testing.assert_array_equal(normal.get_weights()[0], np.ones(4))
    both = Sequential().add(K.Bidirectional(K.LSTM(3), input_shape=(5, 4))).get_weights()
    for one, other in zip(both[:3], both[3:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_embeddings_count_from_0():
    model = Sequential().add(K.Embedding(5, 2, input_length=3))
    (weight,) = model.get_weights()
    indices = np.array([[0, 4, 2]])
    np.testing.assert_array_equal(model.forward(indices)[0], weight[[0, 4, 2]])
    with pytest.raises(DataError, match="received index 6"):
        model.forward(np.array([[5, 0, 0]]))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sum", lambda a, b: a + b),
        ("mul", lambda a, b: a * b),
        ("max", np.maximum),
        ("ave", lambda a, b: (a + b) / 2),
        ("sub", lambda a, b: a - b),
        ("concat", lambda a, b: np.concatenate([a, b], axis=1)),
        ("dot", lambda a, b: (a * b).sum(axis=1, keepdims=True)),
    ],
)
def test_merge_combines_inputs(mode: str, expected: Any):
    first, second = K.Input((4,)), K.Input((4,))
    model = Model([first, second], K.merge([first, second], mode))
    a, b = RANDOM.normal(size=(2, 1, 4)).astype(np.float32)
    np.testing.assert_allclose(model.forward([a, b]), expected(a, b), atol=1e-6)


def graph() -> Model:
    first, second = K.Input((4,)), K.Input((3,))
    hidden = K.Dense(5, name="hidden")(first)
    joined = K.merge([hidden, K.Dense(5, name="other")(second)], name="joined")
    return Model([first, second], K.Dense(2, name="end")(joined))


def test_graphs_are_saved_frozen_and_cut(tmp_path: Path, capsys):
    model, x = graph(), [np.ones([2, 4], np.float32), np.ones([2, 3], np.float32)]
    y = model.forward(x)
    model.saveModel(str(tmp_path / "m"))
    for twin in (cloudpickle.loads(cloudpickle.dumps(model)), Loader.loadModel(str(tmp_path / "m"))):
        np.testing.assert_array_equal(twin.forward(x), y)
        part = twin.new_graph("hidden")
        assert part.get_output_shape() == (None, 5)
        assert part.forward(x[0]).shape == (2, 5)
    model.freeze_up_to("joined")
    trained = [
        name for name in ("hidden", "other", "end") if next(model.get_layer(name).module.parameters()).requires_grad
    ]
    assert trained == ["end"]
    model.summary()
    assert "57 weights, 12 of them trained" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="No layer is named 'ende'.*Did you mean 'end'"):
        model.get_layer("ende")


def test_sizes_that_are_not_known_stay_open():
    model = Sequential().add(K.LSTM(3, return_sequences=True, input_shape=(None, 4)))
    assert model.get_output_shape() == (None, None, 3)
    assert model.forward(np.ones([2, 7, 4])).shape == (2, 7, 3)


def test_layers_of_both_styles_mix():
    model = Sequential().add(K.Dense(3, input_shape=(4,))).add(Tanh()).add(K.Dense(2))
    assert model.get_output_shape() == (None, 2)


def test_wrong_models_are_refused():
    with pytest.raises(ArgumentError, match="it needs input_shape="):
        Sequential().add(K.Dense(3))
    with pytest.raises(ArgumentError, match=r"expects rows of shape \(5,\); it would receive \(3,\)"):
        Sequential().add(K.Dense(3, input_shape=(4,))).add(K.Dense(3, input_shape=(5,)))
    with pytest.raises(ArgumentError, match="'rellu' is not an activation. Did you mean 'relu'"):
        K.Activation("rellu")
    with pytest.raises(ArgumentError, match="is not an initialization method"):
        K.Dense(3, init="glorot")
    with pytest.raises(ArgumentError, match="expected a node"):
        K.Dense(3)(np.ones(3))
    with pytest.raises(ArgumentError, match="dim=0 is the batch"):
        K.Select(0, 1)
