"""What a hostile name, file or store may not do: run code, or open anything outside of the store."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from orca.errors import ArgumentError, DataError
from tests.programs import run

NAMES = [
    "../x", "a/../../x", "..", ".", "/etc/passwd", "a//b", "a/", "%2e%2e%2f", "a%00b", "a\0b", "a\\b", "~root", "a b",
    "", "x" * 300, "CON", "a/nul.txt", "-x", ".hidden", "_x", "a/1", "a/1/b", "ä", "a\nb", "name@", "name@../x",
    "name@0x1", "name@" + "9" * 30, "name{a=b}", "name^x", "@production",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_hostile_name_is_refused_by_every_call(om, ir, name):
    for call in (om.models.resolve, om.models.get, om.models.exists, om.models.drop, om.models.metadata):
        with pytest.raises(ArgumentError, match=r"name="):
            call(name)
    with pytest.raises(ArgumentError, match=r"name="):
        om.models.put(ir, name)
    with pytest.raises(ArgumentError, match=r"name="):
        om.datasets.put([1], name)
    assert om.models.list() == om.datasets.list() == om._files.walk("models") == om._files.walk("datasets") == []


def test_nothing_outside_of_the_store_is_opened(om, ir):
    om.models.put(ir, "net", tag="production")
    om.datasets.put([1], "list")
    output = run(f"""
        import os, sys
        import orca.store, orca.store.packing.models, safetensors.numpy, sqlite3
        from orca.backends.registry import find
        find("openvino", "openvino")
        from orca.errors import OrcaError
        om = orca.store.Store({om.path!r}, create=False)
        names = {NAMES!r}
        opened = []

        def watch(event, arguments):
            if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "sqlite3.connect"):
                opened.append(os.fspath(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else "")

        sys.addaudithook(watch)
        for name in names:
            for call in (om.models.resolve, om.models.get, om.models.ir_path, om.datasets.get, om.datasets.drop):
                try:
                    call(name)
                except (OrcaError, AttributeError):
                    pass
        assert om.models.ir_path(om.models.resolve("net@production")).is_file()
        assert om.datasets.get("list") == [1]
        outside = {{name for name in opened if name and not str(name).startswith({om.path!r})}}
        print(len(opened), sorted(name for name in outside if "/lib/python" not in str(name)))
    """)
    count, _, rest = output.strip().partition(" ")
    assert int(count) > 5
    assert rest == "[]"


def test_a_changed_byte_is_named_with_its_file_and_checksum(om, ir):
    version = om.models.put(ir, "net")
    path = om.models.ir_path(version)
    content = bytearray(path.with_suffix(".bin").read_bytes())
    content[7] ^= 1
    path.with_suffix(".bin").write_bytes(content)
    for call in (lambda: om.models.ir_path(version), lambda: om.models.get("net")):
        with pytest.raises(DataError, match=r"'models/net/1/model.bin' has SHA-256 [0-9a-f]{64}; its manifest says"):
            call()
    assert len(om.verify()) == 1
    path.with_suffix(".bin").unlink()
    with pytest.raises(DataError, match=r"'models/net/1/model.bin' is missing"):
        om.models.ir_path(version)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_out_of_the_store_is_not_followed(om, ir, tmp_path, what):
    version = om.models.put(ir, "net")
    path = om.models.ir_path(version)
    if what == "file":
        outside = tmp_path / "outside.bin"
        path.with_suffix(".bin").rename(outside)
        path.with_suffix(".bin").symlink_to(outside)
    else:
        path.parent.rename(tmp_path / "outside")
        path.parent.symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match=r"model.*is a link, or below one"):
        om.models.ir_path(version)
    assert om.verify()


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mknod, (self.path,)


def test_a_program_with_pickled_weights_is_refused_and_does_not_run(om, tmp_path):
    mark, path, evil = tmp_path / "ran", tmp_path / "net.pt2", tmp_path / "evil.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 1), (torch.zeros(3, 2),)), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(evil, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if info.filename.endswith("model_weights_config.json"):
                config = json.loads(content)
                for entry in config["config"].values():
                    entry["use_pickle"] = True
                content = json.dumps(config).encode()
            if "/weights/weight_" in info.filename:
                content = pickle.dumps(Touch(str(mark)))
            target.writestr(info.filename, content)
    with pytest.raises(ArgumentError, match=r"evil.pt2' has weights that torch would unpickle"):
        om.models.put(evil, "net", example=np.zeros((3, 2), "f4"))
    assert not mark.exists()
    assert om.models.list() == []


def test_a_stored_program_is_never_loaded_without_trust(om, tmp_path, monkeypatch):
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 1), torch.zeros(3, 2)), path)
    om.models.put(path, "net", example=np.zeros((3, 2), "f4"))
    monkeypatch.setattr(torch.jit, "load", lambda *args, **kwargs: pytest.fail("the program was loaded"))
    assert om.models.get("net").predict(np.ones((1, 2), "f4")).shape == (1, 1)
    assert om.runtime.model("net").predict(np.ones((1, 2), "f4")).get(60).shape == (1, 1)


def test_an_archive_with_members_outside_of_it_is_refused(om, tmp_path):
    for name, ending in (("../../outside", "keras"), ("/etc/outside", "pt")):
        path = tmp_path / f"net.{ending}"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
            archive.writestr(name, "x")
        with pytest.raises(DataError, match=r"holds a file with the name .*outside of the archive"):
            om.models.put(path, "net")
    assert not (tmp_path.parent / "outside").exists()


def test_a_manifest_cannot_name_files_outside_of_its_folder(om, ir):
    om.models.put(ir, "net")
    with om._database.writing() as connection:
        text = connection.exec_driver_sql("SELECT manifest FROM orca_versions").scalar_one()
        manifest = json.loads(text)
        manifest["files"]["../../../outside"] = {"sha256": "0" * 64, "size": 1}
        connection.exec_driver_sql("UPDATE orca_versions SET manifest = ?", (json.dumps(manifest),))
    with pytest.raises(DataError, match=r"the manifest of net@1 names '../../../outside'"):
        om.models.get("net")


def test_secrets_of_the_database_are_not_shown(om, tmp_path):
    from orca.store.database import Database

    with pytest.raises(DataError, match=r"cannot be reached") as caught:
        Database("postgresql+psycopg://orca:secret@127.0.0.1:1/none?connect_timeout=2")
    assert "secret" not in str(caught.value)
