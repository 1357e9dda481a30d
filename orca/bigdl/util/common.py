"""RNG, Sample and JTensor under BigDL's import name."""

from orca.backends.bigdl.random_stream import RNG
from orca.backends.bigdl.samples import JTensor, Sample

__all__ = ["JTensor", "RNG", "Sample"]
