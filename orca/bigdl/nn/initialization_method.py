"""Initialization methods under BigDL's import name."""

from orca.backends.bigdl.initialization import (
    BilinearFiller,
    ConstInitMethod,
    InitializationMethod,
    MsraFiller,
    Ones,
    RandomNormal,
    RandomUniform,
    Xavier,
    Zeros,
)

__all__ = [
    "BilinearFiller",
    "ConstInitMethod",
    "InitializationMethod",
    "MsraFiller",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "Xavier",
    "Zeros",
]
