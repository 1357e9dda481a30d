"""Files of layers: what is saved comes back, BigDL's protobuf files are read, and other files are refused."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from orca.bigdl.nn.layer import (
    GRU,
    LSTM,
    BatchNormalization,
    BiRecurrent,
    CAddTable,
    Concat,
    ConcatTable,
    ConvLSTMPeephole,
    Dropout,
    Identity,
    Input,
    L2Regularizer,
    Linear,
    LSTMPeephole,
    MapTable,
    Maxout,
    Model,
    Recurrent,
    Reshape,
    Sequential,
    SpatialConvolution,
    Tanh,
    TimeDistributed,
    Transpose,
)
from orca.errors import ArgumentError, DataError

RANDOM = np.random.default_rng(1)


def rows(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def shared() -> Sequential:
    layer = Linear(4, 4)
    return Sequential().add(layer).add(Tanh()).add(layer)


def graph() -> Model:
    start = Input()
    hidden = Linear(4, 3, wRegularizer=L2Regularizer(0.1)).set_name("hidden")(start)
    return Model(start, CAddTable()([Tanh()(hidden), hidden])).stop_gradient(["hidden"])


MODELS: list[tuple[Any, np.ndarray]] = [
    (Sequential().add(Linear(4, 3)).add(BatchNormalization(3)).add(Dropout(0.3)), rows(5, 4)),
    (Sequential().add(Reshape([1, 4, 4])).add(SpatialConvolution(1, 2, 3, 3, 1, 1, -1, -1)), rows(5, 16)),
    (Concat(2).add(Linear(4, 2)).add(Sequential().add(Linear(4, 3)).add(Tanh())), rows(5, 4)),
    (Sequential().add(ConcatTable().add(Identity()).add(Linear(4, 4))).add(MapTable(Linear(4, 2))), rows(5, 4)),
    (shared(), rows(5, 4)),
    (graph(), rows(5, 4)),
    (Recurrent().add(LSTM(4, 3, activation="relu")), rows(2, 5, 4)),
    (Recurrent().add(GRU(4, 3, 0.2)), rows(2, 5, 4)),
    (BiRecurrent().add(LSTMPeephole(4, 3)), rows(2, 5, 4)),
    (Recurrent().add(ConvLSTMPeephole(2, 3, 3, 3)), rows(1, 2, 2, 4, 4)),
    (TimeDistributed(Maxout(4, 2, 3)), rows(2, 5, 4)),
    (Transpose([(1, 2), (2, 3)]), rows(2, 5, 4)),
]


def outputs(layer: Any, x: np.ndarray) -> list[np.ndarray]:
    value = layer.evaluate().forward(x)
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize(("layer", "x"), MODELS, ids=lambda value: getattr(type(value), "__name__", "") or None)
def test_a_saved_layer_comes_back(layer: Any, x: np.ndarray, tmp_path: Path):
    expected = outputs(layer, x)
    layer.saveModel(str(tmp_path / "one"))
    layer.saveModel(str(tmp_path / "two"), str(tmp_path / "two.weights"))
    for again in (
        Model.loadModel(str(tmp_path / "one")),
        Model.loadModel(str(tmp_path / "two"), str(tmp_path / "two.weights")),
    ):
        assert type(again) is type(layer)
        assert [child.name() for child in again.walk()] == [child.name() for child in layer.walk()]
        assert again.regularizers() == layer.regularizers()
        for one, other in zip(outputs(again, x), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_frozen_layers_stay_frozen(tmp_path: Path):
    model = Sequential().add(Linear(2, 2).set_name("a")).add(Linear(2, 2)).freeze(["a"])
    model.save(str(tmp_path / "m"))
    again = Model.load(str(tmp_path / "m"))
    assert [parameter.requires_grad for parameter in again.module.parameters()] == [False, False, True, True]


def test_files_are_not_replaced_unasked(tmp_path: Path):
    path = str(tmp_path / "m")
    Linear(2, 2).saveModel(path)
    with pytest.raises(ArgumentError, match="exists. Pass over_write=True"):
        Linear(2, 2).saveModel(path)
    Linear(2, 2).saveModel(path, over_write=True)
    with pytest.raises(ArgumentError, match="does not exist"):
        Model.loadModel(str(tmp_path / "none"))
    Linear(2, 2).saveModel(str(tmp_path / "apart"), str(tmp_path / "weights"))
    with pytest.raises(ArgumentError, match="were saved apart"):
        Model.loadModel(str(tmp_path / "apart"))


def test_a_description_that_is_wrong_is_refused(tmp_path: Path):
    from safetensors.numpy import save_file

    entry = {"class": "Linear", "module": "orca.backends.bigdl.linear", "name": "l", "names": [], "regularizers": {}}
    unknown = {**entry, "class": "Liner", "arguments": {}}
    for number, layer in enumerate(({}, {**entry, "arguments": {"size": 3}}, unknown, {"same": 4})):
        text = json.dumps({"version": 1, "layer": layer, "frozen": [], "apart": False})
        save_file({"a": np.ones(1)}, tmp_path / str(number), {"orca.bigdl": text})
        with pytest.raises(DataError, match="does not describe a layer|which is not known.*Did you mean 'Linear'"):
            Model.loadModel(str(tmp_path / str(number)))


def test_java_objects_are_refused_with_the_reason(tmp_path: Path):
    (tmp_path / "java").write_bytes(b"\xac\xed\x00\x05sr\x00" + bytes(100))
    with pytest.raises(DataError, match=r"holds Java objects: .*save\(\).*saveModel"):
        Model.loadModel(str(tmp_path / "java"))


@pytest.mark.parametrize(
    "data", [b"", b"no model at all, but some text", bytes(range(256)), b"\x0a\xff\xff\xff\xff\x0f"]
)
def test_other_files_are_refused(data: bytes, tmp_path: Path):
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(DataError, match="not a BigDL model"):
        Model.loadModel(str(tmp_path / "other"))


# BigDL's format, written by Google's library from the field numbers of its schema

_FIELDS: dict[str, list[tuple[str, int, str, bool]]] = {
    "Storage": [("datatype", 1, "int32", False), ("float_data", 2, "float", True), ("id", 9, "int32", False)],
    "Tensor": [
        ("datatype", 1, "int32", False),
        ("size", 2, "int32", True),
        ("stride", 3, "int32", True),
        ("offset", 4, "int32", False),
        ("dimension", 5, "int32", False),
        ("nElements", 6, "int32", False),
        ("storage", 8, "Storage", False),
        ("id", 9, "int32", False),
    ],
    "Regularizer": [("regularizerType", 1, "int32", False), ("regularData", 2, "double", True)],
    "Array": [
        ("size", 1, "int32", False),
        ("datatype", 2, "int32", False),
        ("i32", 3, "int32", True),
        ("str", 7, "string", True),
    ],
    "AttrEntry": [("key", 1, "string", False), ("value", 2, "Attr", False)],
    "NameAttrList": [("name", 1, "string", False), ("attr", 2, "AttrEntry", True)],
    "Attr": [
        ("dataType", 1, "int32", False),
        ("int32Value", 3, "int32", False),
        ("doubleValue", 6, "double", False),
        ("boolValue", 8, "bool", False),
        ("regularizerValue", 9, "Regularizer", False),
        ("tensorValue", 10, "Tensor", False),
        ("bigDLModuleValue", 13, "Module", False),
        ("nameAttrListValue", 14, "NameAttrList", False),
        ("arrayValue", 15, "Array", False),
        ("dataFormatValue", 16, "int32", False),
    ],
    "Module": [
        ("name", 1, "string", False),
        ("subModules", 2, "Module", True),
        ("weight", 3, "Tensor", False),
        ("bias", 4, "Tensor", False),
        ("preModules", 5, "string", True),
        ("moduleType", 7, "string", False),
        ("attr", 8, "AttrEntry", True),
        ("version", 9, "string", False),
        ("train", 10, "bool", False),
        ("id", 12, "int32", False),
        ("hasParameters", 15, "bool", False),
        ("parameters", 16, "Tensor", True),
    ],
}


def _schema() -> dict[str, Any]:
    proto = descriptor_pb2.FileDescriptorProto(name="bigdl_test.proto", package="bigdl_test", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    plain = {"int32": kinds.TYPE_INT32, "float": kinds.TYPE_FLOAT, "double": kinds.TYPE_DOUBLE}
    plain |= {"bool": kinds.TYPE_BOOL, "string": kinds.TYPE_STRING}
    for name, entries in _FIELDS.items():
        message = proto.message_type.add(name=name)
        for field, number, kind, repeated in entries:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label, type=plain.get(kind, kinds.TYPE_MESSAGE))
            if kind not in plain:
                added.type_name = f".bigdl_test.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bigdl_test.{name}")) for name in _FIELDS}


SCHEMA = _schema()


class Writer:
    """Builds messages; the values of tensors are kept apart by number, as BigDL does."""

    def __init__(self) -> None:
        self.storages: dict[int, np.ndarray] = {}
        self.count = 0

    def tensor(self, array: np.ndarray, whole: bool = False) -> Any:
        number = 1000 + len(self.storages)
        self.storages[number] = array.astype(np.float32).ravel()
        return self.reference(array.shape, number)

    def reference(self, shape: tuple[int, ...], number: int, data: Any = ()) -> Any:
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        storage = SCHEMA["Storage"](datatype=2, float_data=data, id=number)
        return SCHEMA["Tensor"](
            datatype=2, size=shape, stride=strides, offset=1, dimension=len(shape), storage=storage, id=number + 5000
        )

    def attribute(self, value: Any) -> Any:
        kind = SCHEMA["Attr"]
        if isinstance(value, bool):
            return kind(dataType=5, boolValue=value)
        if isinstance(value, int):
            return kind(dataType=0, int32Value=value)
        if isinstance(value, float):
            return kind(dataType=3, doubleValue=value)
        if isinstance(value, list) and value and isinstance(value[0], str):
            return kind(dataType=15, arrayValue=SCHEMA["Array"](size=len(value), datatype=4, str=value))
        if isinstance(value, list):
            return kind(dataType=15, arrayValue=SCHEMA["Array"](size=len(value), datatype=0, i32=value))
        if isinstance(value, L2Regularizer):
            return kind(dataType=9, regularizerValue=SCHEMA["Regularizer"](regularizerType=2, regularData=[value.l2]))
        if isinstance(value, np.ndarray):
            return kind(dataType=10, tensorValue=self.tensor(value))
        if isinstance(value, SCHEMA["Module"]):
            return kind(dataType=13, bigDLModuleValue=value)
        if value == "NHWC":
            return kind(dataType=16, dataFormatValue=1)
        assert value is None
        return kind(dataType=9)

    def module(
        self, name: str, attributes: dict[str, Any], weights: Any = (), inside: Any = (), before: Any = (),
        called: str = "", old: bool = False, package: str = "com.intel.analytics.bigdl.dllib.nn",
    ) -> Any:  # fmt: skip
        self.count += 1
        message = SCHEMA["Module"](
            name=called, moduleType=f"{package}.{name}", version="2.4.0", train=True, id=self.count,
            hasParameters=bool(weights) and not old, subModules=inside, preModules=before,
        )  # fmt: skip
        for key, value in attributes.items():
            message.attr.add(key=key, value=self.attribute(value))
        if old:
            for field, weight in zip((message.weight, message.bias), weights, strict=True):
                field.CopyFrom(self.tensor(weight))
        else:
            message.parameters.extend(self.tensor(weight) for weight in weights)
        return message

    def save(self, message: Any, path: Path, apart: Path | None = None) -> None:
        if apart is None:
            listing = SCHEMA["NameAttrList"](name="global_storage")
            for number, data in self.storages.items():
                tensor = self.reference(data.shape, number, data.tolist())
                listing.attr.add(key=str(number + 5000), value=SCHEMA["Attr"](dataType=10, tensorValue=tensor))
            value = SCHEMA["Attr"](dataType=14, nameAttrListValue=listing)
            message.attr.add(key="global_storage", value=value)
        else:
            data = struct.pack(">ii", 3721, len(self.storages))
            for number, values in self.storages.items():
                data += struct.pack(">iii", number, 0, values.size) + values.astype(">f4").tobytes()
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            apart.write_bytes(data + struct.pack(">i", len(digest)) + digest)
        path.write_bytes(message.SerializeToString())


def linear(writer: Writer, inputs: int, outputs_: int, weights: Any, **options: Any) -> Any:
    attributes = {"inputSize": inputs, "outputSize": outputs_, "withBias": True, "wRegularizer": L2Regularizer(0.5)}
    return writer.module("Linear", attributes, weights, **options)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_sequential_of_bigdl_is_read(apart: bool, old: bool, tmp_path: Path):
    writer = Writer()
    weights = [rows(1, 2, 1, 3, 3), rows(2), rows(3, 32), rows(3)]
    convolution = {
        "nInputPlane": 1, "nOutputPlane": 2, "kernelW": 3, "kernelH": 3, "strideW": 1, "strideH": 1, "padW": -1,
        "padH": -1, "nGroup": 1, "propagateBack": True, "wRegularizer": None, "withBias": True,
    }  # fmt: skip
    package = "com.intel.analytics.bigdl.nn" if old else "com.intel.analytics.bigdl.dllib.nn"
    message = writer.module(
        "Sequential",
        {},
        inside=[
            writer.module("Reshape", {"size": [1, 4, 4], "batchMode": 0}, package=package),
            writer.module("SpatialConvolution", convolution, weights[:2], called="conv", old=old, package=package),
            writer.module("Tanh", {}, package=package),
            writer.module("Reshape", {"size": [32], "batchMode": 2}, package=package),
            linear(writer, 32, 3, weights[2:], called="fc", old=old, package=package),
            writer.module("Dropout", {"initP": 0.25, "inplace": False, "scale": True}, package=package),
        ],
        package=package,
    )
    weight_path = tmp_path / "m.bin" if apart else None
    writer.save(message, tmp_path / "m.bigdl", weight_path)
    model = Model.loadModel(str(tmp_path / "m.bigdl"), str(weight_path) if weight_path else None)
    expected = (
        Sequential()
        .add(Reshape([1, 4, 4]))
        .add(SpatialConvolution(1, 2, 3, 3, 1, 1, -1, -1))
        .add(Tanh())
        .add(Reshape([32], True))
        .add(Linear(32, 3))
        .add(Dropout(0.25))
        .set_weights(weights)
    )
    x = rows(5, 16)
    np.testing.assert_allclose(model.evaluate().forward(x), expected.evaluate().forward(x), atol=1e-6)
    assert {"conv", "fc"} <= set(model.named())
    assert [entry[1:] for entry in model.regularizers()] == [(0.0, 0.5)]


def test_a_graph_of_bigdl_is_read(tmp_path: Path):
    writer = Writer()
    weights = [rows(3, 4), rows(3)]
    message = writer.module(
        "StaticGraph",
        {"inputNames": ["start"], "outputNames": ["sum"]},
        inside=[
            writer.module("CAddTable", {"inplace": False}, called="sum", before=["fc", "tanh"]),
            writer.module("Tanh", {}, called="tanh", before=["fc"]),
            linear(writer, 4, 3, weights, called="fc", before=["start"]),
            writer.module("Input", {}, called="start"),
        ],
    )
    writer.save(message, tmp_path / "m.bigdl")
    model, x = Model.loadModel(str(tmp_path / "m.bigdl")), rows(5, 4)
    hidden = x @ weights[0].T + weights[1]
    np.testing.assert_allclose(model.forward(x), hidden + np.tanh(hidden), atol=1e-5)


def test_recurrent_and_normalizing_layers_of_bigdl_are_read(tmp_path: Path):
    writer = Writer()
    cell = Recurrent().add(LSTM(4, 3))
    pre, bias, hidden = cell.get_weights()
    inner = linear(writer, 4, 12, [pre, bias])
    statistics = {"nOutput": 3, "eps": 1e-3, "momentum": 0.2, "affine": True}
    statistics |= {"runningMean": rows(3), "runningVar": np.abs(rows(3))}
    scale, shift = rows(3), rows(3)
    message = writer.module(
        "Sequential",
        {},
        inside=[
            writer.module(
                "Recurrent",
                {"bnorm": False},
                inside=[
                    writer.module("TimeDistributed", {"layer": inner}, [pre, bias], inside=[inner]),
                    writer.module("LSTM", {"inputSize": 4, "hiddenSize": 3, "p": 0.0}, [hidden]),
                ],
            ),
            writer.module("Select", {"dimension": 2, "index": -1}),
            writer.module("BatchNormalization", statistics, [scale, shift]),
            writer.module("Unsqueeze", {"pos": [2], "numInputDims": -2147483648}),
            writer.module("Squeeze", {"dims": [1], "batchMode": True}),
        ],
    )
    writer.save(message, tmp_path / "m.bigdl")
    model, x = Model.loadModel(str(tmp_path / "m.bigdl")).evaluate(), rows(2, 5, 4)
    last = cell.forward(x)[:, -1]
    normal = (last - statistics["runningMean"]) / np.sqrt(statistics["runningVar"] + 1e-3) * scale + shift
    np.testing.assert_allclose(model.forward(x), normal, rtol=1e-4, atol=1e-5)


def test_containers_of_one_layer_are_read(tmp_path: Path):
    writer = Writer()
    weights = [rows(3, 4), rows(3)]
    inner = linear(writer, 4, 3, weights)
    writer.save(writer.module("TimeDistributed", {"layer": inner}, inside=[inner]), tmp_path / "m.bigdl")
    model, x = Model.loadModel(str(tmp_path / "m.bigdl")), rows(2, 5, 4)
    np.testing.assert_allclose(model.forward(x), x @ weights[0].T + weights[1], atol=1e-5)


def test_a_file_with_an_unknown_layer_names_it(tmp_path: Path):
    writer = Writer()
    for name, hint in (("Linearr", "Did you mean 'Linear'"), ("PriorBox", "object detection")):
        writer.save(writer.module(name, {}), tmp_path / "m.bigdl")
        with pytest.raises(DataError, match=f"holds a layer '{name}', which is not supported.*{hint}"):
            Model.loadModel(str(tmp_path / "m.bigdl"))


def test_damaged_files_are_refused(tmp_path: Path):
    writer = Writer()
    path, apart = tmp_path / "m.bigdl", tmp_path / "m.bin"
    writer.save(linear(writer, 4, 3, [rows(3, 4), rows(3)]), path, apart)
    with pytest.raises(DataError, match="Pass the weight file as weight_path="):
        Model.loadModel(str(path))
    data = bytearray(apart.read_bytes())
    data[30] ^= 1
    (tmp_path / "changed").write_bytes(bytes(data))
    with pytest.raises(DataError, match="checksum does not match"):
        Model.loadModel(str(path), str(tmp_path / "changed"))
    for length in (3, 20, len(data) - 10):
        (tmp_path / "short").write_bytes(bytes(data[:length]))
        with pytest.raises(DataError, match="cut off|checksum"):
            Model.loadModel(str(path), str(tmp_path / "short"))
    wrong = Writer()
    wrong.save(linear(wrong, 4, 3, [rows(2, 4), rows(3)]), path)
    with pytest.raises(DataError, match=r"weights of the shapes \[\(2, 4\), \(3,\)\]"):
        Model.loadModel(str(path))


def test_the_activations_of_a_cell_are_read(tmp_path: Path):
    writer = Writer()
    cell = Recurrent().add(LSTM(4, 3, inner_activation="hard_sigmoid"))
    pre, bias, hidden = cell.get_weights()
    attributes = {"inputSize": 4, "hiddenSize": 3, "p": 0.0, "activation": writer.module("Tanh", {})}
    attributes |= {"innerActivation": writer.module("HardSigmoid", {})}
    inner = linear(writer, 4, 12, [pre, bias])
    parts = [writer.module("TimeDistributed", {}, inside=[inner]), writer.module("LSTM", attributes, [hidden])]
    writer.save(writer.module("Recurrent", {}, inside=parts), tmp_path / "m.bigdl")
    model, x = Model.loadModel(str(tmp_path / "m.bigdl")), rows(2, 5, 4)
    np.testing.assert_allclose(model.forward(x), cell.forward(x), atol=1e-6)
