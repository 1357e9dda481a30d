"""`orca predict` with any files and options: it ends with predictions, or with a message and exit code 1 or 2."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from typer.testing import CliRunner

from orca.cli import app
from orca.errors import OrcaError
from tests.backends.openvino_models import dense
from tests.fuzzing.mutations import EDITS, damaged, shared_memory, write

WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), max_size=6)
OPTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("--columns"), st.sampled_from(["a,b,c,d,e,f", "a", "f,e,d,c,b,a", "a,,b"]) | WORD),
        st.tuples(st.just("--output-cols"), st.sampled_from(["score", "score,more", "a"]) | WORD),
        st.tuples(st.just("--batch-size"), st.sampled_from(["1", "7", "0", "-1", "1e3"]) | WORD),
        st.tuples(st.just("--layout"), st.sampled_from(["NC", "CN", "NHWC", "N"]) | WORD),
        st.tuples(st.just("--size"), st.sampled_from(["2x2", "x", "0x0", "9"]) | WORD),
        st.tuples(st.just("--mean"), st.sampled_from(["0.5", "1,2", "nan", "1,2,3,4,5,6"]) | WORD),
        st.tuples(st.just("--scale"), st.sampled_from(["0", "2", "inf"]) | WORD),
        st.tuples(st.just("--hint"), st.sampled_from(["throughput", "latency"]) | WORD),
        st.tuples(st.just("--device"), st.sampled_from(["CPU", "AUTO", "NPU"]) | WORD),
    ),
    max_size=3,
)
OUTPUTS = ("out.csv", "out.parquet", "out.npy", "out.txt", "no/such/folder/out.csv", "")
CASES = st.tuples(
    st.sampled_from(["csv", "parquet", "npy", "png"]),
    st.one_of(st.just([]), st.just([]), EDITS),
    st.one_of(st.just([]), st.just([("--columns", "a,b,c,d,e,f")]), OPTIONS),
    st.sampled_from(["out.csv", "out.parquet", "out.npy", *OUTPUTS]),
)


def _files() -> dict[str, bytes]:
    """One intact file of each kind."""
    from PIL import Image

    x = np.random.default_rng(0).normal(size=(5, 6)).astype("f4")
    frame = pd.DataFrame(x, columns=list("abcdef"))
    npy, parquet, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, x)
    frame.to_parquet(parquet)
    Image.new("RGB", (4, 3)).save(png, "png")
    return {
        "csv": frame.to_csv(index=False).encode(),
        "parquet": parquet.getvalue(),
        "npy": npy.getvalue(),
        "png": png.getvalue(),
    }


@contextmanager
def target() -> Iterator[Callable[[Any], None]]:
    files, runner = _files(), CliRunner()
    with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
        model = dense(f"{folder}/model.xml")
        place = f"{folder}/work"

        def check(case: tuple[str, Any, list[tuple[str, str]], str]) -> None:
            kind, edits, options, output = case
            shutil.rmtree(place, ignore_errors=True)
            os.mkdir(place)
            write(f"{place}/in.{kind}", damaged(files[kind], edits) if edits else files[kind])
            words = [word for option in options for word in option]
            result = runner.invoke(app, ["predict", model, f"{place}/in.{kind}", f"{place}/{output}", *words])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert result.exit_code in (0, 1, 2), f"exit code {result.exit_code}"
            if result.exit_code:
                assert result.output.strip(), "an error without a message"
                raise OrcaError(result.output)

        yield check
