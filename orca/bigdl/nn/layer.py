"""All layers under BigDL's import name."""

from orca.backends.bigdl import layers
from orca.backends.bigdl.layers import *  # noqa: F403

__all__ = [*layers.__all__]
