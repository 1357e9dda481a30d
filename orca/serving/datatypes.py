"""The names of the Open Inference Protocol for numpy's types."""

from __future__ import annotations

DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""By numpy's names."""
DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
"""By the protocol's names."""
BYTES = "BYTES"
