"""BigDL-style layers, criteria and training, with the import names of BigDL's Python API."""

from orca.bigdl.running import connect

connect()
