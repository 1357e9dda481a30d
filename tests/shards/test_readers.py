"""What all readers share: URLs, missing packages and a light import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orca.context import Context
from orca.errors import MissingPackageError
from orca.shards.readers import image_files, tfrecord_files
from orca.shards.readers.paths import contents, listing
from tests.shards.reader_files import put


def test_memory_urls_are_listed_and_read(local: Context):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/readers/b.csv": b"a\n2\n", "/readers/a.csv": b"a\n1\n", "/readers/_SUCCESS": b""})
    files = listing("memory://readers")
    assert [(file.url, file.label, file.size) for file in files] == [
        ("memory:///readers/a.csv", "a.csv", 4),
        ("memory:///readers/b.csv", "b.csv", 4),
    ]
    assert [contents(file) for file in listing("memory://readers/*.csv")] == [b"a\n1\n", b"a\n2\n"]


def test_missing_packages_are_reported_with_the_install_command(tmp_path, monkeypatch):
    put(tmp_path, a_png="x")
    for name in ("PIL", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pip install pillow"):
        image_files._decoded(listing(tmp_path)[0], None, "RGB")
    with pytest.raises(MissingPackageError, match="pip install tensorflow-cpu"):
        tfrecord_files._read_file(listing(tmp_path)[0], None)


def test_importing_the_readers_loads_nothing_heavy():
    code = (
        "import sys, orca.data; from orca.data import read_csv, read_images, read_tfrecord;"
        "print([m for m in ('pandas', 'pyarrow', 'PIL', 'tensorflow', 'fsspec', 'ray', 'pyspark') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.strip() == "[]"
