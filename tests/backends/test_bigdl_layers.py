"""The API of BigDL layers: weights, modes, graphs, copies, and the errors for bad input."""

from __future__ import annotations

import copy

import cloudpickle
import numpy as np
import pytest
import torch

from orca.bigdl.nn.criterion import (
    ClassNLLCriterion,
    CrossEntropyCriterion,
    MSECriterion,
    MultiCriterion,
    TimeDistributedCriterion,
    TimeDistributedMaskCriterion,
)
from orca.bigdl.nn.initialization_method import ConstInitMethod, RandomUniform, Xavier, Zeros
from orca.bigdl.nn.layer import (
    GRU,
    LSTM,
    BiRecurrent,
    CAddTable,
    ConcatTable,
    Dropout,
    GaussianNoise,
    Identity,
    Input,
    JoinTable,
    L1L2Regularizer,
    L2Regularizer,
    Linear,
    LookupTable,
    Model,
    PriorBox,
    Recurrent,
    ReLU,
    Sequential,
    SpatialBatchNormalization,
    SpatialConvolution,
    Tanh,
)
from orca.bigdl.util.common import RNG, JTensor, Sample
from orca.errors import ArgumentError, DataError

RANDOM = np.random.default_rng(0)


def rows(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def test_bigdl_s_own_literal_numbers_come_out():
    rng = RNG()
    rng.set_seed(100)
    layer = Linear(4, 5)
    expected = [0.41366524, 0.009532653, -0.677581, 0.07945433, -0.5742568]
    np.testing.assert_allclose(layer.forward(rng.uniform(0, 1, [4])), expected, atol=1e-6)
    rng.set_seed(100)
    np.testing.assert_allclose(rng.uniform(0.1, 0.2, [2, 3])[0, 0], 0.15434049, atol=1e-8)
    features = np.random.RandomState(100).uniform(0, 1, (6, 2))
    layer = Linear(2, 1).set_init_method(Xavier(), Zeros()).set_seed(1234).reset()
    expected = [[-0.47596836], [-0.37598032], [-0.00492062], [-0.5906958], [-0.12307882], [-0.77907401]]
    np.testing.assert_allclose(layer.forward(features), expected, atol=1e-6)


def test_normal_numbers_continue_across_calls():
    from orca.backends.bigdl.random_stream import RandomStream

    whole, parts = RandomStream(3), RandomStream(3)
    together = whole.normal(0, 1, 9)
    apart = np.concatenate([parts.normal(0, 1, count) for count in (1, 3, 0, 5)])
    np.testing.assert_array_equal(together, apart)


def test_weights_are_set_by_number_of_values():
    layer = Linear(4, 2)
    with pytest.warns(UserWarning, match="the values are used in their order"):
        layer.set_weights([np.arange(8.0).reshape(4, 2), np.zeros(2)])
    np.testing.assert_array_equal(layer.get_weights()[0], np.arange(8.0).reshape(2, 4))
    with pytest.raises(ArgumentError, match=r"received shape \(3,\).*expected numbers of shape \(2, 4\)"):
        layer.set_weights([np.zeros(3), np.zeros(2)])
    with pytest.raises(ArgumentError, match="received 1 arrays; .* has 2 weights"):
        layer.set_weights([np.zeros(8)])
    with pytest.raises(ArgumentError, match="received 1 arrays; .* has 0 weights"):
        ReLU().set_weights([np.zeros(3)])


def test_a_layer_without_weights_says_so(capsys):
    assert ReLU().get_weights() is None
    assert "does not have weight/bias" in capsys.readouterr().out
    assert ReLU().parameters() == {}
    assert not ReLU().is_with_weights()


def test_parameters_name_weights_and_gradients():
    layer = Sequential().add(Linear(3, 2).set_name("first")).add(SpatialConvolution(1, 2, 1, 1).set_name("second"))
    table = layer.parameters()
    assert set(table) == {"first", "second"}
    assert set(table["first"]) == {"weight", "bias", "gradWeight", "gradBias"}
    assert set(SpatialBatchNormalization(2).set_name("n").parameters()["n"]) >= {"runningMean", "runningVar"}
    with pytest.raises(ArgumentError, match="Two layers are named 'same'"):
        Sequential().add(Linear(1, 1).set_name("same")).add(Linear(1, 1).set_name("same")).parameters()


def test_gradients_accumulate_until_they_are_zeroed():
    layer, x, grad = Linear(3, 2).set_name("l"), rows(4, 3), rows(4, 2)
    for count in (1, 2):
        layer.forward(x)
        layer.backward(x, grad)
        np.testing.assert_allclose(layer.parameters()["l"]["gradBias"], count * grad.sum(axis=0), rtol=1e-5)
    before = layer.get_weights()[1]
    layer.update_parameters(0.1)
    np.testing.assert_allclose(layer.get_weights()[1], before - 0.2 * grad.sum(axis=0), rtol=1e-4, atol=1e-6)
    layer.zero_grad_parameters()
    assert not layer.parameters()["l"]["gradWeight"].any()


def test_frozen_layers_get_no_gradient():
    model = Sequential().add(Linear(3, 3).set_name("a")).add(Linear(3, 2).set_name("b"))
    model.freeze(["a"])
    x = rows(4, 3)
    model.forward(x)
    model.backward(x, rows(4, 2))
    assert not model.parameters()["a"]["gradWeight"].any()
    assert model.parameters()["b"]["gradWeight"].any()
    model.unfreeze()
    assert all(parameter.requires_grad for parameter in model.module.parameters())
    with pytest.raises(ArgumentError, match="No layer is named 'c'"):
        model.freeze(["c"])


def test_initialization_methods_draw_at_once():
    RNG().set_seed(1)
    layer = Linear(3, 2).set_init_method(ConstInitMethod(2.0), Zeros())
    np.testing.assert_array_equal(layer.get_weights()[0], np.full([2, 3], 2.0, np.float32))
    layer.set_init_method(Xavier())
    first = layer.get_weights()[0]
    assert np.abs(first).max() <= np.sqrt(6 / 5)
    assert not np.array_equal(layer.reset().get_weights()[0], first)
    assert Linear(3, 2).set_init_method(RandomUniform(1.0, 2.0)).get_weights()[0].min() >= 1.0
    with pytest.raises(ArgumentError, match="expected an initialization method"):
        layer.set_init_method("xavier")


def test_regularizers_name_the_parameters_of_the_module():
    first = Linear(3, 2, wRegularizer=L2Regularizer(0.1))
    model = Sequential().add(first).add(Linear(2, 2).setBRegularizer(L1L2Regularizer(0.2, 0.3)))
    assert model.regularizers() == [("0.weight", 0.0, 0.1), ("1.bias", 0.2, 0.3)]
    assert {name for name, _ in model.module.named_parameters()} == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_modes_change_random_layers():
    layer, x = Sequential().add(Dropout(0.5)).add(GaussianNoise(1.0)), rows(20, 10)
    assert layer.is_training()
    assert not np.array_equal(layer.forward(x), x)
    assert layer.evaluate() is layer
    np.testing.assert_array_equal(layer.forward(x), x)
    quiet = Dropout(0.25, scale=False).evaluate()
    np.testing.assert_allclose(quiet.forward(x), 0.75 * x, rtol=1e-6)


def test_backward_uses_the_mask_of_forward():
    layer, x = Dropout(0.5), np.ones([6, 6], np.float32)
    y = layer.forward(x)
    np.testing.assert_array_equal(layer.backward(x, np.ones([6, 6])), y)


def graph() -> Model:
    start, other = Input(), Input()
    hidden = Linear(4, 3).set_name("hidden")(start)
    joined = CAddTable()([Tanh()(hidden), Linear(2, 3).set_name("other")(other)])
    return Model([start, other], [Linear(3, 2).set_name("end")(joined), joined])


def test_a_graph_equals_its_layers():
    model, x = graph(), [rows(5, 4), rows(5, 2)]
    end, joined = model.forward(x)
    parts = model.named()
    expected = np.tanh(parts["hidden"].forward(x[0])) + parts["other"].forward(x[1])
    np.testing.assert_allclose(joined, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end, parts["end"].forward(expected), rtol=1e-5, atol=1e-6)
    assert model.node("hidden").element() is parts["hidden"]
    with pytest.raises(ArgumentError, match="No node is named 'hiden'.*Did you mean 'hidden'"):
        model.node("hiden")


def test_graphs_and_layers_survive_copies():
    x = [rows(5, 4), rows(5, 2)]
    model = graph()
    expected = model.forward(x)
    for twin in (cloudpickle.loads(cloudpickle.dumps(model)), copy.deepcopy(model)):
        for one, other in zip(twin.forward(x), expected, strict=True):
            np.testing.assert_array_equal(one, other)
        twin.set_weights([np.zeros_like(weight) for weight in twin.get_weights()])
        np.testing.assert_array_equal(model.forward(x)[0], expected[0])
    module = cloudpickle.loads(cloudpickle.dumps(model.build_module()))
    ints = [torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)]
    assert module(ints)[0].shape == (2, 2)


def test_a_deep_graph_can_be_pickled():
    node = start = Input()
    for _ in range(600):
        node = Identity()(node)
    model = cloudpickle.loads(cloudpickle.dumps(Model(start, node)))
    assert model.forward(np.ones([2, 3])).shape == (2, 3)


def test_two_models_are_chained_without_gradients_of_the_first():
    first, second = Linear(3, 3).set_name("first"), Linear(3, 2).set_name("second")
    model, x = Model(first, second), rows(4, 3)
    model.forward(x)
    model.backward(x, rows(4, 2))
    assert not model.parameters()["first"]["gradWeight"].any()
    assert model.parameters()["second"]["gradWeight"].any()


def test_stop_gradient_cuts_a_branch():
    start = Input()
    hidden = Linear(3, 3).set_name("a")(start)
    model = Model(start, Linear(3, 2).set_name("b")(hidden)).stop_gradient(["b"])
    x = rows(4, 3)
    model.forward(x)
    assert not model.backward(x, rows(4, 2)).any()
    assert model.parameters()["b"]["gradWeight"].any()


def test_wrong_graphs_are_refused():
    start, unused = Input(), Input()
    end = Linear(3, 2)(start)
    with pytest.raises(ArgumentError, match="is not connected to an output"):
        Model([start, unused], end)
    with pytest.raises(ArgumentError, match="is an input of the graph, but is not in the list"):
        Model(unused, CAddTable()([end, unused]))
    first = Identity()(start)
    second = Identity()(first)
    first.previous.append(second)
    with pytest.raises(ArgumentError, match="has a cycle"):
        Model(start, second)
    with pytest.raises(ArgumentError, match="expected a Node"):
        Linear(3, 2)(np.ones(3))
    loop = Sequential()
    with pytest.raises(ArgumentError, match="cannot contain itself"):
        loop.add(Sequential().add(loop))


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (Linear(4, 2), np.ones([3, 5]), r"received shape \(3, 5\); expected \(rows, 4\)"),
        (Linear(4, 2), np.ones([2, 3, 4]), "Use TimeDistributed or Bottle"),
        (SpatialConvolution(3, 2, 3, 3), np.ones([2, 4, 5, 5]), "expected 3 channels, not 4"),
        (JoinTable(2, 2), [np.ones([2, 3]), np.ones([4, 3])], "only dimension 2 may differ"),
        (LookupTable(5, 2), np.array([[0.0, 1.0]]), "received index 0; indices count from 1, expected 1 to 5"),
        (LookupTable(5, 2), np.array([[6.0, 1.0]]), "received index 6"),
        (Recurrent().add(LSTM(3, 2)), np.ones([2, 3]), "expected 3 dimensions"),
        (Recurrent(), np.ones([2, 3, 3]), "has no cell"),
        (ConcatTable(), [], "empty list"),
        (Linear(2, 2), "text", "expected a numpy array"),
    ],
)
def test_wrong_input_is_a_data_error(layer, x, message):
    with pytest.raises(DataError, match=message):
        layer.forward(x)


def test_wrong_targets_are_data_errors():
    with pytest.raises(DataError, match=r"output has shape \(2, 3\), the target \(3, 2\)"):
        MSECriterion().forward(np.ones([2, 3]), np.ones([3, 2]))
    assert MSECriterion().forward(np.ones([4, 1]), np.zeros([4])) == 1.0
    for criterion in (ClassNLLCriterion(), CrossEntropyCriterion()):
        for label in (0.0, 4.0):
            with pytest.raises(DataError, match=f"Row 1 has the label {label:.0f}; .* expected 1 to 3"):
                criterion.forward(np.zeros([2, 3]), np.array([1.0, label]))
    with pytest.raises(ArgumentError, match="PriorBox is not supported"):
        PriorBox([1.0])


@pytest.mark.parametrize("name", ["quantize", "save_caffe", "save_tensorflow", "predict_image"])
def test_methods_that_are_left_out_say_what_to_use(name):
    with pytest.raises(ArgumentError, match=rf"{name}\(\) is not supported: "):
        getattr(Linear(2, 2), name)()
    with pytest.raises(ArgumentError, match=r"load_torch\(\) is not supported: .*from_torch"):
        Model.load_torch("file.t7")


def test_row_weights_are_the_denominators_of_means():
    target = torch.tensor([1.0, -1.0, 3.0])
    assert ClassNLLCriterion().row_weight(target).tolist() == [1.0, 0.0, 1.0]
    weighted = ClassNLLCriterion(np.array([1.0, 2.0, 4.0]))
    assert weighted.row_weight(target).tolist() == [1.0, 0.0, 4.0]
    assert weighted.label_rule() == (1, 3)
    assert MSECriterion().row_weight(target) is None
    assert ClassNLLCriterion(size_average=False).reduction == "sum"
    masked = TimeDistributedMaskCriterion(ClassNLLCriterion(), -1)
    assert masked.row_weight(torch.tensor([[1.0, -1.0], [2.0, 1.0]])).tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match="TimeDistributedMaskCriterion"):
        TimeDistributedCriterion(ClassNLLCriterion()).row_weight(torch.tensor([[1.0, -1.0]]))
    mixed = MultiCriterion().add(ClassNLLCriterion()).add(ClassNLLCriterion(size_average=False))
    with pytest.raises(ArgumentError, match="cannot be combined across workers"):
        assert mixed.reduction


def test_a_weighted_mean_equals_the_combination_of_its_parts():
    criterion, output = ClassNLLCriterion(np.array([1.0, 3.0])), rows(6, 2)
    target = np.array([1.0, 2.0, -1.0, 2.0, 1.0, 1.0], np.float32)
    parts = [(criterion.forward(output[s], target[s]), s) for s in (slice(0, 2), slice(2, 3), slice(3, 6))]
    weights = [float(criterion.row_weight(torch.from_numpy(target[s])).sum()) for _, s in parts]
    combined = sum(loss * weight for (loss, _), weight in zip(parts, weights, strict=True)) / sum(weights)
    assert criterion.forward(output, target) == pytest.approx(combined, rel=1e-6)


@pytest.mark.parametrize("cell", [LSTM(4, 3), LSTM(4, 3, 0.5), GRU(4, 3), GRU(4, 3, 0.5)], ids=repr)
def test_recurrent_layers_can_be_copied_and_continued(cell):
    layer, x = Recurrent().add(cell), rows(2, 6, 4)
    layer.forward(x)
    layer = copy.deepcopy(layer).evaluate()
    whole = layer.forward(x)
    layer.forward(x[:, :2])
    layer.set_hidden_state(layer.get_hidden_state())
    np.testing.assert_allclose(layer.forward(x[:, 2:]), whole[:, 2:], atol=1e-6)


def test_the_fused_lstm_equals_its_steps():
    cell, x = LSTM(4, 3), rows(2, 6, 4)
    layer = Recurrent().add(cell)
    fused, grad = layer.forward(x), layer.backward(x, np.ones([2, 6, 3]))
    cell.fused = False
    np.testing.assert_allclose(layer.forward(x), fused, atol=1e-6)
    np.testing.assert_allclose(layer.backward(x + 0, np.ones([2, 6, 3])), grad, atol=1e-6)


def test_both_directions_start_alike_and_learn_apart():
    layer = BiRecurrent().add(LSTM(4, 3))
    weights = layer.get_weights()
    for one, other in zip(weights[:3], weights[3:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(layer.parameters()) == 4


def test_samples_and_tensors_hold_arrays():
    row = Sample.from_ndarray([np.ones([2, 2]), np.zeros(3)], np.array([1.0]))
    assert [tensor.to_ndarray().shape for tensor in row.features] == [(2, 2), (3,)]
    sparse = JTensor.sparse(np.array([5.0]), np.array([[0], [1]]), np.array([2, 2]))
    np.testing.assert_array_equal(sparse.to_ndarray(), [[0.0, 5.0], [0.0, 0.0]])
    with pytest.raises(ArgumentError, match="expected an array of numbers"):
        Sample.from_ndarray("text", 1.0)
    with pytest.raises(ArgumentError, match="received 3 values"):
        JTensor([1, 2, 3], [2, 2])
