"""Models of a store: versions, aliases, references, what a version holds and what comes back."""

from __future__ import annotations

import json
import pickle
import tempfile
import time

import numpy as np
import pytest
import torch
from torch import nn

import orca
from orca import Estimator, Store
from orca.errors import ArgumentError, DataError, NotStoredError
from orca.store import Port
from tests.backends.openvino_models import dense_result, two, two_result

X = np.random.default_rng(0).normal(size=(7, 6)).astype("f4")


def test_references_name_versions_by_number_alias_and_distance(om, ir):
    for number in range(1, 5):
        om.models.put(ir, "net", tag="candidate", attributes={"number": number})
    om.models.alias("net@2", "production")
    found = {name: om.models.resolve(name).number for name in (
        "net", "net@1", "net@latest", "net@production", "net@candidate", "net^", "net^^^", "net@production^", "net@3^",
    )}  # fmt: skip
    assert found == {
        "net": 4, "net@1": 1, "net@latest": 4, "net@production": 2, "net@candidate": 4, "net^": 3, "net^^^": 1,
        "net@production^": 1, "net@3^": 2,
    }  # fmt: skip
    assert [version.attributes["number"] for version in om.models.versions("net")] == [1, 2, 3, 4]
    assert om.models.resolve("net@2").aliases == ("production",)
    assert om.models.aliases("net") == {"candidate": 4, "production": 2}


def test_a_missing_name_version_or_alias_is_named_with_what_exists(om, ir):
    om.models.put(ir, "flowers/net", tag="production")
    cases = {
        "flower/net": r"no model of this name.*Did you mean 'flowers/net'",
        "flowers/net@2": r"no such version. Versions: 1",
        "flowers/net^": r"no such version. Versions: 1",
        "flowers/net@prodction": r"no such alias. Did you mean 'production'",
        "flowers/net@best": r"no such alias. Aliases: production",
    }
    for name, message in cases.items():
        with pytest.raises(NotStoredError, match=message):
            om.models.resolve(name)
        assert not om.models.exists(name)
    assert om.models.exists("flowers/net@production")


def test_versions_are_dropped_one_by_one_or_all_and_numbers_are_not_used_again(om, ir):
    for _ in range(3):
        om.models.put(ir, "net")
    om.models.alias("net@2", "production")
    with pytest.raises(ArgumentError, match=r"'net@2': the aliases production point to"):
        om.models.drop("net@2")
    assert [version.number for version in om.models.drop("net@3")] == [3]
    assert om.models.put(ir, "net").number == 4
    assert len(om.models.drop("net", force=True)) == 3
    assert om.models.list() == []
    assert om.models.put(ir, "net").number == 5
    assert om.models.aliases("net") == {}
    assert om.sweep() == om.verify() == []


def test_the_counter_of_changes_grows_with_each_commit_and_only_then(om, ir):
    counts = [om.changes()]
    for change in (lambda: om.models.put(ir, "net"), lambda: om.models.alias("net", "best"), om.verify, om.models.list):
        change()
        counts.append(om.changes())
    assert counts == [0, 1, 2, 2, 2]


def test_names_match_patterns(om, ir):
    for name in ("flowers/a", "flowers/b", "trees"):
        om.models.put(ir, name)
    assert om.models.list() == ["flowers/a", "flowers/b", "trees"]
    assert om.models.list("flowers/*") == ["flowers/a", "flowers/b"]


def test_a_torch_model_is_kept_as_weights_and_converted(om):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    version = om.models.put(model, "net", example=X, attributes={"why": "test"})
    expected = model(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(om.models.get("net").predict(X), expected, atol=1e-5)
    other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    assert om.models.get("net", into=other) is other
    np.testing.assert_array_equal(other(torch.from_numpy(X)).detach().numpy(), expected)
    assert version.signature.inputs == (Port("input", "float32", (-1, 6)),)
    facts = om.models.metadata("net")
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["attributes"] == {"why": "test"}
    assert facts["example"]["rows"] == 7
    assert {"model.xml", "model.bin", "native/state/orca.json"} <= set(facts["files"])
    with pytest.raises(DataError, match=r"do not fit this module"):
        om.models.get("net", into=nn.Linear(6, 2))


def test_a_fitted_estimator_keeps_its_position_history_and_state(om, local):
    def make() -> Estimator:
        return Estimator.from_torch(
            model=nn.Linear(6, 1), optimizer=torch.optim.SGD, loss=nn.MSELoss(), config={"lr": 0.01}, seed=3
        )

    est = make()
    history = est.fit(X, X[:, :1], epochs=3)
    version = om.models.put(est, "net", history=history)
    assert version.manifest["position"] == {"epoch": 3, "step": 3, "seed": 3}
    assert [record["epoch"] for record in version.manifest["history"]] == [1, 2, 3]
    restored = om.models.get("net", into=make())
    assert (restored.epoch, restored.seed) == (3, 3)
    np.testing.assert_allclose(restored.predict(X), est.predict(X), atol=1e-6)
    np.testing.assert_allclose(om.models.get("net").predict(X), est.predict(X), atol=1e-5)


def test_an_ir_and_a_live_openvino_model_come_back_with_their_signature(om, tmp_path):
    import openvino

    path = two(tmp_path / "two.xml")
    om.models.put(path, "file")
    om.models.put(openvino.Core().read_model(path), "live")
    zeta, alpha = np.ones((3, 2), "f4"), np.ones((3, 3), "f4")
    for name in ("file", "live"):
        signature = om.models.resolve(name).signature
        assert [port.name for port in signature.inputs] == ["zeta", "alpha"]
        assert [port.shape for port in signature.outputs] == [(-1, 3), (-1,)]
        outputs = om.models.get(name).predict({"zeta": zeta, "alpha": alpha})
        np.testing.assert_allclose(outputs["wide"], two_result(zeta, alpha)["wide"], rtol=1e-5)


def test_program_files_are_converted_compared_and_only_given_back_with_trust(om, tmp_path):
    model = nn.Linear(6, 2)
    path = tmp_path / "net.pt2"
    rows = {0: torch.export.Dim("rows")}
    torch.export.save(torch.export.export(model, (torch.from_numpy(X),), dynamic_shapes=(rows,)), path)
    assert om.models.put(path, "net", example=X).kind == "exported_program"
    plain = om.models.get("net")
    np.testing.assert_allclose(plain.predict(X), model(torch.from_numpy(X)).detach().numpy(), atol=1e-5)
    program = om.models.get("net", trusted=True).module()
    assert program(torch.from_numpy(X)).shape == (7, 2)
    assert "native/net.pt2" not in om.models.export("net", tmp_path / "out")
    assert "native/net.pt2" in om.models.export("net", tmp_path / "trusted", trusted=True)


def test_a_model_that_the_conversion_changes_is_not_stored(om):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand(1) * 100 + self.training

    with pytest.raises(DataError, match=r"other numbers than torch"):
        om.models.put(Noisy(), "net", example=X)
    assert om.models.list() == []
    assert om.sweep() == []


def test_what_is_no_model_is_refused_with_what_is_expected(om, tmp_path):
    for name in ("model.pkl", "model.joblib", "model.h5", "model.pth", "model.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps({}))
        with pytest.raises(ArgumentError, match=rf"{name}' is .*which a store does not take"):
            om.models.put(tmp_path / name, "net")
    with pytest.raises(ArgumentError, match=r"obj= is a dict; expected an Estimator, a Keras, torch"):
        om.models.put({}, "net")
    with pytest.raises(ArgumentError, match=r"example=None: a torch model does not know its inputs"):
        om.models.put(nn.Linear(1, 1), "net")
    with pytest.raises(DataError, match=r"does not exist"):
        om.models.put(tmp_path / "missing.onnx", "net")
    assert om.sweep() == om.models.list() == []


def test_the_folder_of_a_model_has_the_layout_of_openvino_model_server(om, ir):
    version = om.models.put(ir, "net")
    path = om.models.ir_path(version)
    assert path.relative_to(om.path).as_posix() == "models/net/1/model.xml"
    assert sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in (".xml", ".bin")) == [
        "model.bin",
        "model.xml",
    ]
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest == dict(version.manifest)


def test_a_store_opens_again_and_travels_to_other_processes(om, ir):
    om.models.put(ir, "net")
    for again in (Store(om.path), pickle.loads(pickle.dumps(om)), orca.Store(om.path, create=False)):
        np.testing.assert_allclose(again.models.get("net").predict(X), dense_result(X), rtol=1e-5)
    with pytest.raises(ArgumentError, match=r"There is no store"):
        Store(tempfile.mkdtemp(), create=False)
    with pytest.raises(ArgumentError, match=r"pass db="):
        Store("s3://bucket/path")


def test_a_database_belongs_to_one_folder(tmp_path, ir):
    url = f"sqlite:///{tmp_path}/one.db"
    Store(tmp_path / "one", url).models.put(ir, "net")
    assert Store(tmp_path / "one", url).models.list() == ["net"]
    with pytest.raises(ArgumentError, match=r"is the database of another store"):
        Store(tmp_path / "two", url)


@pytest.mark.slow
def test_a_bucket_with_postgres_gives_the_same_as_a_folder(bucket, database, ir, om):
    remote = Store(bucket, database)
    for store in (remote, om):
        store.models.put(ir, "net", tag="best")
        store.datasets.put({"x": X}, "rows")
        store.datasets.put({"x": X}, "rows", append=True)
    np.testing.assert_array_equal(remote.models.get("net@best").predict(X), om.models.get("net").predict(X))
    np.testing.assert_array_equal(remote.datasets.get("rows")["x"], om.datasets.get("rows")["x"])
    assert remote.models.ir_path(remote.models.resolve("net")).is_file()
    assert remote.verify() == remote.sweep() == []
    remote.models.drop("net", force=True)
    remote.datasets.drop("rows")
    assert remote._files.walk("models") == remote._files.walk("datasets") == []
    with pytest.raises(DataError, match=r"cannot be reached"):
        Store(bucket, "postgresql+psycopg://orca@127.0.0.1:1/none?connect_timeout=2")


def test_tokens_are_shown_once_stored_hashed_and_limited_to_names_and_time(om):
    token = om.tokens.add("mine", pattern="flowers/*")
    old = om.tokens.add("old", days=1e-6)
    assert om.tokens.check(token, "flowers/net")
    assert not om.tokens.check(token, "trees")
    time.sleep(0.2)
    assert not om.tokens.check(old, "flowers/net")
    for wrong in (
        "",
        "orca",
        f"{token}x",
        token[:-1],
        token.replace("orca_", "orca-"),
        "orca_" + "0" * 16 + "_x",
        None,
    ):
        assert not om.tokens.check(wrong, "flowers/net")
    assert [entry.label for entry in om.tokens.list()] == ["mine", "old"]
    secret = token.split("_", 2)[2].encode()
    assert len(secret) >= 40
    files = [path.read_bytes() for path in om._files.root.glob("orca.db*") if path.is_file()]
    assert not any(secret in content for content in files)
    assert om.tokens.drop("mine") == 1
    assert not om.tokens.check(token, "flowers/net")
    with pytest.raises(NotStoredError, match=r"no such token"):
        om.tokens.drop("mine")
