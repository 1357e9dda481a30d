"""Models in the style of Keras 1 under BigDL's import name."""

from orca.backends.bigdl.keras_models import KerasGraph, KerasSequential
from orca.bigdl.keras.training import Training


class Sequential(Training, KerasSequential):
    """Runs layers one after another."""


class Model(Training, KerasGraph):
    """A graph of layers.

    Args:
        input: The node of `Input`, or a list of them.
        output: The output node, or a list of them.
        name: The name of the model.
    """


__all__ = ["Model", "Sequential"]
