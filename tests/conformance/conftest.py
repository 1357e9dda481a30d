"""The backends that the torch conformance tests run on."""

from __future__ import annotations

import pytest

BACKENDS = ["torch_distributed", pytest.param("horovod", marks=pytest.mark.horovod), "parameter_server"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
