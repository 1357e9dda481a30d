"""Basic layers in the style of Keras 1."""

from __future__ import annotations

from typing import Any

import torch

from orca.backends.bigdl import learned_activations, linear, noise, normalization, table_layers, table_structure
from orca.backends.bigdl import shape as shape_module
from orca.backends.bigdl.activations import ELU as BigDLELU
from orca.backends.bigdl.activations import LeakyReLU as BigDLLeakyReLU
from orca.backends.bigdl.activations import Threshold, activation_of
from orca.backends.bigdl.container import Sequential
from orca.backends.bigdl.embedding import LookupTable
from orca.backends.bigdl.initialization import Zeros
from orca.backends.bigdl.keras_layer import KerasLayer, Shape, channels_last, initial
from orca.backends.bigdl.layer import Layer
from orca.backends.bigdl.maths import AddConstant
from orca.core.arguments import check_choice, check_count, check_flag, check_number
from orca.errors import ArgumentError


class _AnyLinear(linear.Linear):
    """A linear layer over the last dimension."""

    def compute(self, x: Any) -> torch.Tensor:
        return self.product(x)


def _one(input_dim: Any, input_shape: Any) -> Any:
    return (input_dim,) if input_dim is not None else input_shape


class Dense(KerasLayer):
    """A fully connected layer over the last dimension.

    Args:
        output_dim: The number of outputs.
        init: The initialization method of the weight, or its name.
        activation: The activation, a layer or its name.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_dim: The number of inputs, instead of `input_shape`.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(
        self, output_dim: int, init: Any = "glorot_uniform", activation: Any = None, W_regularizer: Any = None,
        b_regularizer: Any = None, bias: bool = True, input_dim: int | None = None, input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_one(input_dim, input_shape), name)
        self.output_dim = check_count("output_dim", output_dim)
        self.init, self.activation = initial(init), activation
        self.regularizers_of = (W_regularizer, b_regularizer)
        self.bias = check_flag("bias", bias)

    def make(self, shape: Shape) -> Layer:
        layer = _AnyLinear(shape[-1], self.output_dim, self.bias, *self.regularizers_of)
        return layer.set_init_method(self.init, Zeros())


class Activation(KerasLayer):
    """An activation by its name.

    Args:
        activation: The name, or a layer.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(self, activation: Any, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.function = activation_of(activation)

    def make(self, shape: Shape) -> Layer:
        return self.function


class Dropout(KerasLayer):
    """Sets random values to 0 in training.

    Args:
        p: The probability of 0.
        input_shape: The shape of a row, for the first layer of a model.
    """

    def __init__(self, p: float, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.p = p
        noise.check_probability("p", p)

    def make(self, shape: Shape) -> Layer:
        return noise.Dropout(self.p)


class GaussianDropout(Dropout):
    """Multiplies by normal numbers around 1 in training.

    Args:
        p: Their deviation is √(p / (1 - p)).
    """

    def make(self, shape: Shape) -> Layer:
        return noise.GaussianDropout(self.p)


class GaussianNoise(KerasLayer):
    """Adds normal numbers in training.

    Args:
        sigma: Their deviation.
    """

    def __init__(self, sigma: float, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.sigma = check_number("sigma", sigma, least=0.0)

    def make(self, shape: Shape) -> Layer:
        return noise.GaussianNoise(self.sigma)


class Flatten(KerasLayer):
    """Makes a vector of each row."""

    def make(self, shape: Shape) -> Layer:
        return shape_module.InferReshape([-1], True)


class Reshape(KerasLayer):
    """Gives rows another shape; one size may be -1.

    Args:
        target_shape: The shape of a row.
    """

    def __init__(self, target_shape: Any, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.target = shape_module.integers("target_shape", target_shape)

    def make(self, shape: Shape) -> Layer:
        return shape_module.InferReshape(self.target, True)


class Permute(KerasLayer):
    """Reorders the dimensions of rows.

    Args:
        dims: The order of the dimensions, counted from 1 without the batch.
    """

    def __init__(self, dims: Any, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.dims = shape_module.integers("dims", dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ArgumentError(f"dims={dims}: expected an order of 1 to {len(self.dims)}.")

    def make(self, shape: Shape) -> Layer:
        order, swaps = list(range(1, len(self.dims) + 1)), []
        for place, wanted in enumerate(self.dims):
            other = order.index(wanted)
            if other != place:
                order[place], order[other] = order[other], order[place]
                swaps.append((place + 2, other + 2))
        return shape_module.Transpose(swaps)


class RepeatVector(KerasLayer):
    """Repeats rows (size,) to (n, size).

    Args:
        n: How often.
        input_dim: The size, instead of `input_shape`.
    """

    def __init__(self, n: int, input_dim: int | None = None, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(_one(input_dim, input_shape), name)
        self.n = check_count("n", n)

    def make(self, shape: Shape) -> Layer:
        return shape_module.Replicate(self.n, 1, 1)


class Masking(KerasLayer):
    """Sets time steps to 0 in which all values equal a number.

    Args:
        mask_value: The number.
    """

    def __init__(self, mask_value: float = 0.0, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.mask_value = check_number("mask_value", mask_value)

    def make(self, shape: Shape) -> Layer:
        return shape_module.Masking(self.mask_value)


class Highway(KerasLayer):
    """Mixes the input with a transformed input, by a learned gate.

    Args:
        activation: The activation of the transformed input.
        W_regularizer: The regularizer of both weights.
        b_regularizer: The regularizer of both biases.
        bias: Whether biases are added.
        input_dim: The number of inputs, instead of `input_shape`.
    """

    def __init__(
        self, activation: Any = None, W_regularizer: Any = None, b_regularizer: Any = None, bias: bool = True,
        input_dim: int | None = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_one(input_dim, input_shape), name)
        self.inner, self.bias = activation, check_flag("bias", bias)
        self.regularizers_of = (W_regularizer, b_regularizer)

    def make(self, shape: Shape) -> Layer:
        return linear.Highway(shape[0], self.bias, self.inner, *self.regularizers_of)


class MaxoutDense(KerasLayer):
    """Takes the maximum of several linear layers.

    Args:
        output_dim: The number of outputs.
        nb_feature: The number of linear layers.
        W_regularizer: The regularizer of the weight.
        b_regularizer: The regularizer of the bias.
        bias: Whether a bias is added.
        input_dim: The number of inputs, instead of `input_shape`.
    """

    def __init__(
        self, output_dim: int, nb_feature: int = 4, W_regularizer: Any = None, b_regularizer: Any = None,
        bias: bool = True, input_dim: int | None = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_one(input_dim, input_shape), name)
        self.output_dim, self.nb_feature = check_count("output_dim", output_dim), check_count("nb_feature", nb_feature)
        self.bias, self.regularizers_of = check_flag("bias", bias), (W_regularizer, b_regularizer)

    def make(self, shape: Shape) -> Layer:
        return linear.Maxout(shape[0], self.output_dim, self.nb_feature, self.bias, *self.regularizers_of)


class Embedding(KerasLayer):
    """Looks up the rows of a weight by indices that count from 0.

    Args:
        input_dim: The number of rows.
        output_dim: The number of columns.
        init: The initialization method of the weight, or its name.
        weights: The first weight instead of a random one.
        trainable: Whether the weight is trained.
        input_length: The number of indices in a row, instead of `input_shape`.
        W_regularizer: The regularizer of the weight.
    """

    def __init__(
        self, input_dim: int, output_dim: int, init: Any = "uniform", weights: Any = None, trainable: bool = True,
        input_length: int | None = None, W_regularizer: Any = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_one(input_length, input_shape), name)
        self.input_dim, self.output_dim = check_count("input_dim", input_dim), check_count("output_dim", output_dim)
        self.init, self.regularizer = initial(init), W_regularizer
        self.weights, self.trainable = weights, check_flag("trainable", trainable)

    def make(self, shape: Shape) -> Layer:
        table = LookupTable(self.input_dim, self.output_dim, wRegularizer=self.regularizer).set_init_method(self.init)
        if self.weights is not None:
            table.set_weights(self.weights)
        layer = Sequential().add(AddConstant(1.0)).add(table)
        return layer if self.trainable else layer.freeze()


class BatchNormalization(KerasLayer):
    """Normalizes columns, or the channels of images, over the batch.

    Args:
        epsilon: What is added to the variance.
        momentum: How much of the running statistics each batch keeps.
        beta_init: The initialization method of the bias, or its name.
        gamma_init: The initialization method of the weight, or its name.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    def __init__(
        self, epsilon: float = 0.001, momentum: float = 0.99, beta_init: Any = "zero", gamma_init: Any = "one",
        dim_ordering: str = "th", input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.epsilon, self.momentum = check_number("epsilon", epsilon), check_number("momentum", momentum)
        self.beta, self.gamma = initial(beta_init, "beta_init"), initial(gamma_init, "gamma_init")
        self.last = channels_last(dim_ordering)

    def make(self, shape: Shape) -> Layer:
        size = shape[-1] if self.last or len(shape) == 1 else shape[0]
        settings = (size, self.epsilon, 1.0 - self.momentum)
        layer: Layer
        if len(shape) == 3:
            layer = normalization.SpatialBatchNormalization(*settings, data_format="NHWC" if self.last else "NCHW")
        else:
            layer = normalization.BatchNormalization(*settings)
        return layer.set_init_method(self.gamma, self.beta)


class LeakyReLU(KerasLayer):
    """Computes x for positive values, alpha * x for the others.

    Args:
        alpha: The slope of negative values.
    """

    def __init__(self, alpha: float = 0.01, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.alpha = check_number("alpha", alpha)

    def make(self, shape: Shape) -> Layer:
        return BigDLLeakyReLU(self.alpha)


class ELU(KerasLayer):
    """Computes x for positive values, alpha * (exp(x) - 1) for the others.

    Args:
        alpha: The factor.
    """

    def __init__(self, alpha: float = 1.0, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.alpha = check_number("alpha", alpha)

    def make(self, shape: Shape) -> Layer:
        return BigDLELU(self.alpha)


class ThresholdedReLU(KerasLayer):
    """Sets values up to theta to 0.

    Args:
        theta: The threshold.
    """

    def __init__(self, theta: float = 1.0, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.theta = check_number("theta", theta)

    def make(self, shape: Shape) -> Layer:
        return Threshold(self.theta, 0.0)


class PReLU(KerasLayer):
    """Multiplies negative values by a learned slope.

    Args:
        nOutputPlane: The number of channels with a slope of their own; 0 for one common slope.
    """

    def __init__(self, nOutputPlane: int = 0, input_shape: Any = None, name: str | None = None) -> None:
        super().__init__(input_shape, name)
        self.planes = check_count("nOutputPlane", nOutputPlane, least=0)

    def make(self, shape: Shape) -> Layer:
        return learned_activations.PReLU(self.planes)


class SReLU(KerasLayer):
    """An S-shaped function of three straight parts, whose thresholds and outer slopes are learned.

    Args:
        t_left_init: The initialization method of the left threshold, or its name.
        a_left_init: The same for the left slope.
        t_right_init: The same for the right threshold.
        a_right_init: The same for the right slope.
        shared_axes: The axes of a row, counted from 1, along which weights are shared.
    """

    def __init__(
        self, t_left_init: Any = "zero", a_left_init: Any = "glorot_uniform", t_right_init: Any = "glorot_uniform",
        a_right_init: Any = "one", shared_axes: Any = None, input_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.inits = [initial(value) for value in (t_left_init, a_left_init, t_right_init, a_right_init)]
        self.axes = shared_axes

    def make(self, shape: Shape) -> Layer:
        return learned_activations.SReLU(list(shape), self.axes).set_init_method(*self.inits)


class SpatialDropout1D(Dropout):
    """Sets whole columns of sequences to 0 in training."""

    def make(self, shape: Shape) -> Layer:
        return noise.SpatialDropout1D(self.p)


class SpatialDropout2D(KerasLayer):
    """Sets whole channels of images to 0 in training.

    Args:
        p: The probability of 0.
        dim_ordering: "th" for channels first, "tf" for channels last.
    """

    kind: type[noise.SpatialDropout2D] = noise.SpatialDropout2D

    def __init__(
        self, p: float = 0.5, dim_ordering: str = "th", input_shape: Any = None, name: str | None = None
    ) -> None:
        super().__init__(input_shape, name)
        self.p, self.last = noise.check_probability("p", p), channels_last(dim_ordering)

    def make(self, shape: Shape) -> Layer:
        return self.kind(self.p, "NHWC" if self.last else "NCHW")


class SpatialDropout3D(SpatialDropout2D):
    """Sets whole channels of volumes to 0 in training."""

    kind = noise.SpatialDropout3D


_MODES = ("sum", "mul", "max", "min", "ave", "sub", "div", "concat", "dot", "cos")


class Merge(KerasLayer):
    """Combines several inputs.

    Args:
        layers: The layers whose outputs are combined, if this is the first layer of a Sequential.
        mode: "sum", "mul", "max", "min", "ave", "sub", "div", "concat", "dot" or "cos".
        concat_axis: The axis of "concat", which counts the batch as 0.
        input_shape: The shapes of the inputs.
    """

    def __init__(
        self, layers: Any = None, mode: str = "sum", concat_axis: int = -1, input_shape: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_shape, name)
        self.branches = list(layers or [])
        for place, layer in enumerate(self.branches):
            if not isinstance(layer, KerasLayer) or layer.input_shape is None:
                raise ArgumentError(f"layers: {layer!r} is not a layer of this kind with an input_shape.")
            self.attach(f"branch{place}", layer)
        if self.branches and self.input_shape is None:
            self.input_shape = [layer.input_shape for layer in self.branches]
        self.mode, self.axis = check_choice("mode", mode, _MODES), concat_axis

    def make(self, shape: Shape) -> Layer:
        kinds: dict[str, Any] = {
            "sum": table_layers.CAddTable,
            "mul": table_layers.CMulTable,
            "max": table_layers.CMaxTable,
            "min": table_layers.CMinTable,
            "ave": table_layers.CAveTable,
            "sub": table_layers.CSubTable,
            "div": table_layers.CDivTable,
        }
        if self.mode == "concat":
            return table_structure.JoinTable(self.axis + 1 if self.axis >= 0 else self.axis, -1)
        if self.mode == "dot":
            return Sequential().add(table_layers.DotProduct()).add(shape_module.InferReshape([1], True))
        if self.mode == "cos":
            return Sequential().add(table_layers.CosineDistance()).add(shape_module.InferReshape([1, 1], True))
        layer: Layer = kinds[self.mode]()
        return layer

    def compute(self, x: Any) -> Any:
        if self.branches:
            x = [branch.module(item) for branch, item in zip(self.branches, x, strict=True)]
        return super().compute(x)
