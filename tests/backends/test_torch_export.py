"""Exported models return the model's outputs for any number of rows, and a failed export leaves no files."""

from __future__ import annotations

import copy
import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from orca.backends.torch.export import export
from orca.errors import ArgumentError, DataError, MissingPackageError
from orca.shards.tree import leaves, take_rows, tree_map

KINDS = ["onnx", "openvino", "torchscript", "exported_program"]
SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torchscript": ".pt", "exported_program": ".pt2"}
rng = np.random.default_rng(5)


class Pictures(nn.Module):
    """Convolution, running statistics, dropout, and a reshape that depends on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.MaxPool2d(2))
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).reshape(x.shape[0], -1))


class Two(nn.Module):
    """Two inputs, one of them indices; several named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(3, 4)

    def forward(self, numbers, words):
        hidden = self.head(numbers) + self.table(words).sum(dim=1)
        return {"score": hidden.mean(dim=1), "hidden": hidden}


class OneDict(nn.Module):
    """A single argument that is a dict; a tuple of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, batch):
        return self.head(batch["z"]), batch["a"] * 2


class Sequences(nn.Module):
    """Recurrence and attention, which are hard to export."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(3, 4, batch_first=True)
        self.mix = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x):
        return self.mix(self.memory(x)[0])[:, -1]


class Pair(NamedTuple):
    """An output whose class a file cannot refer to."""

    more: torch.Tensor
    less: torch.Tensor


class Named(nn.Module):
    """Returns a named tuple."""

    def forward(self, x):
        return Pair(x + 1, x - 1)


class Repeated(nn.Module):
    """Returns its input, and one result twice."""

    def forward(self, x):
        double = x * 2
        return {"x": x, "once": double, "again": double}


class Branch(nn.Module):
    """Branches on values, which only a script preserves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x + 1
        return x * 2


class HiddenBranch(nn.Module):
    """Branches in a way that cannot be scripted, and a trace of it would be wrong for other values."""

    def forward(self, x):
        return [lambda v: v * 2, lambda v: v + 1][int(x.sum() > 0)](x)


class Frozen(nn.Module):
    """Computes outside torch, so that a trace records a constant."""

    def forward(self, x):
        return torch.from_numpy(np.cumsum(x.detach().numpy(), axis=1))


def numbers(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def words(rows: int) -> np.ndarray:
    return rng.integers(0, 7, (rows, 5))


CASES: dict[str, tuple[nn.Module, Any]] = {
    "pictures": (Pictures(), numbers(5, 1, 8, 8)),
    "tuple": (Two(), (numbers(5, 3), words(5))),
    "keywords": (Two(), {"words": words(5), "numbers": numbers(5, 3)}),
    "one_dict": (OneDict(), {"z": numbers(5, 3), "a": numbers(5, 1)}),
    "sequences": (Sequences(), numbers(5, 6, 3)),
    "named": (Named(), numbers(5, 3)),
    "repeated": (Repeated(), numbers(5, 3)),
}


def run(module: Any, model: nn.Module, data: Any) -> list[np.ndarray]:
    """Return the outputs of a module that has the inputs of `model`."""
    data = tree_map(torch.from_numpy, data)
    with torch.no_grad():
        if isinstance(data, tuple):
            output = module(*data)
        else:
            output = module(**data) if isinstance(data, dict) and isinstance(model, Two) else module(data)
    return [leaf.numpy() for _, leaf in leaves(output)]


def from_file(kind: str, path: str, model: nn.Module, data: Any) -> list[np.ndarray]:
    """Load the file with the usual library, and run it."""
    if kind == "torchscript":
        return run(torch.jit.load(path), model, data)
    if kind == "exported_program":
        return run(torch.export.load(path).module(), model, data)
    arrays = [data] if isinstance(data, np.ndarray) else list(data.values() if isinstance(data, dict) else data)
    if isinstance(data, dict) and isinstance(model, Two):
        arrays = [data["numbers"], data["words"]]
    if kind == "onnx" and importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        return list(session.run(None, {put.name: a for put, a in zip(session.get_inputs(), arrays, strict=True)}))
    openvino = pytest.importorskip("openvino")
    compiled = openvino.compile_model(openvino.Core().read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(arrays).values())


def need(kind: str) -> None:
    for package in {"onnx": ["onnx", "onnxscript"], "openvino": ["openvino"]}.get(kind, []):
        pytest.importorskip(package)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_every_format_returns_the_models_outputs_for_any_number_of_rows(kind: str, case: str, tmp_path: Path) -> None:
    need(kind)
    model, data = CASES[case]
    if isinstance(model, Pictures):
        model.train()(torch.from_numpy(numbers(9, 1, 8, 8)) * 3)  # changes the running statistics
    path = export(model, kind, str(tmp_path / "model"), take_rows(data, 0, 1))
    assert path == str(tmp_path / "model") + SUFFIXES[kind]
    assert model.training, "the caller's model keeps its mode"
    for rows in (1, 2, 5):
        some = take_rows(data, 0, rows)
        expected, actual = run(copy.deepcopy(model).eval(), model, some), from_file(kind, path, model, some)
        assert len(actual) == len(expected)
        for one, two in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    extra = {"model.bin"} if kind == "openvino" else set()
    assert {file.name for file in tmp_path.iterdir()} == {f"model{SUFFIXES[kind]}"} | extra


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_inputs_and_outputs_have_the_models_names_and_only_rows_are_dynamic(kind: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("onnxscript")
    for case, ins, outs in (
        ("keywords", {"numbers": "[?,3]", "words": "[?,5]"}, {"score": "[?]", "hidden": "[?,4]"}),
        ("one_dict", {"z": "[?,3]", "a": "[?,1]"}, {"output_0": "[?,2]", "output_1": "[?,1]"}),
        ("pictures", {"x": "[?,1,8,8]"}, {"output": "[?,3]"}),
        ("named", {"x": "[?,3]"}, {"more": "[?,3]", "less": "[?,3]"}),
        ("repeated", {"x": "[?,3]"}, {"output_x": "[?,3]", "once": "[?,3]", "again": "[?,3]"}),
    ):
        model, data = CASES[case]
        read = openvino.Core().read_model(export(model, kind, str(tmp_path / case), data))
        assert {port.any_name: str(port.partial_shape) for port in read.inputs} == ins
        assert {port.any_name: str(port.partial_shape) for port in read.outputs} == outs


def test_bytes_are_converted_to_the_models_dtype_as_in_predict(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).double()
    path = export(model, "torchscript", str(tmp_path / "m.pt"), np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert path == str(tmp_path / "m.pt")
    assert torch.jit.load(path)(torch.ones(4, 3, dtype=torch.float64)).dtype == torch.float64


def test_a_script_keeps_branches(tmp_path: Path) -> None:
    loaded = torch.jit.load(export(Branch(), "TorchScript", str(tmp_path / "m"), numbers(2, 3)))
    one = torch.ones(4, 3)
    assert torch.equal(loaded(one), one + 1)
    assert torch.equal(loaded(-one), -one * 2)


def test_a_trace_that_would_be_wrong_for_other_values_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="depends on the number of rows or on the values"):
        export(HiddenBranch(), "torchscript", str(tmp_path / "m"), numbers(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["torch_export", "ExportedProgram", "exported-program", "EXPORTED_PROGRAM"])
def test_kinds_have_aliases_and_folders_are_created(kind: str, tmp_path: Path) -> None:
    path = export(nn.Linear(3, 1), kind, str(tmp_path / "new" / "v1.2"), numbers(2, 3))
    assert path == str(tmp_path / "new" / "v1.2.pt2")
    assert torch.export.load(path).module()(torch.ones(7, 3)).shape == (7, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_export_is_silent_and_keeps_random_numbers_and_log_levels(kind: str, tmp_path: Path, capfd: Any) -> None:
    need(kind)
    before, level = torch.random.get_rng_state(), logging.getLogger("torch").level
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export(Sequences(), kind, str(tmp_path / "m"), numbers(2, 6, 3))
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(before)
    Sequences()  # draws its initial weights
    assert torch.equal(after, torch.random.get_rng_state())
    assert [str(warning.message) for warning in caught] == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch").level == level


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_export_keeps_the_old_file_and_leaves_nothing_else(kind: str, tmp_path: Path) -> None:
    need(kind)
    model = Frozen() if kind == "torchscript" else Branch()
    old = tmp_path / f"m{SUFFIXES[kind]}"
    old.write_text("old")
    with pytest.raises(ArgumentError, match=rf'export\(kind="{kind}"\) failed: \w+: .+ any number of rows') as caught:
        export(model, kind, str(tmp_path / "m"), numbers(2, 3))
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [old.name]
    assert old.read_text() == "old"
    with pytest.raises(ArgumentError):
        export(model, kind, str(tmp_path / "new" / "m"), numbers(2, 3))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("kind", "package", "command"),
    [
        ("onnx", "onnx", 'pip install "orca-estimator[onnx]"'),
        ("onnx", "onnxscript", 'pip install "orca-estimator[onnx]"'),
        ("openvino", "openvino", 'pip install "orca-estimator[openvino]"'),
    ],
)
def test_a_missing_package_names_the_command(
    kind: str, package: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes the import fail
    with pytest.raises(MissingPackageError) as caught:
        export(nn.Linear(3, 1), kind, str(tmp_path / "m"), numbers(2, 3))
    assert package in str(caught.value)
    assert command in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "example", "error", "words"),
    [
        ("onxx", "m", np.zeros((2, 3)), ArgumentError, r"kind='onxx' .* mean 'onnx'\? Supported: onnx, openvino"),
        (None, "m", np.zeros((2, 3)), ArgumentError, "kind=None .* torchscript"),
        ("torchscript", "s3://bucket/m", np.zeros((2, 3)), ArgumentError, "path='s3://bucket/m'"),
        ("torchscript", "", np.zeros((2, 3)), ArgumentError, "path=''"),
        ("torchscript", "m", np.zeros((0, 3)), DataError, "no rows"),
        ("torchscript", "m", np.zeros((2, 4)), DataError, "example= does not fit the model"),
        ("torchscript", "m", np.array(["a", "b"]), DataError, "dtype <U1"),
        ("torchscript", "m", (np.zeros((2, 3)), np.zeros(3)), DataError, "different numbers of rows"),
    ],
)
def test_invalid_arguments_are_rejected_with_advice(
    kind: Any, name: str, example: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = str(tmp_path / name) if name == "m" else name
    with pytest.raises(error, match=words):
        export(nn.Linear(3, 1), kind, path, example)
    assert not list(tmp_path.iterdir())
