"""The packages of the Keras backends."""

from __future__ import annotations

from orca.backends.packages.horovod import binding
from orca.core.packages import from_extra

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")

PACKAGES = (
    from_extra("framework", "tensorflow", *_TENSORFLOW, order=20),
    from_extra("framework", "keras", extra="tensorflow", order=21),
    binding("tensorflow", order=20),
)
