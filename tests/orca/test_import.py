"""`import orca` is quick and imports no framework."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "tensorflow", "keras", "mxnet", "ray", "pyspark", "openvino", "pandas", "sklearn", "horovod"]


def test_import_orca_imports_no_framework():
    code = f"import orca, sys; print([name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_importtime_lists_no_framework():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import orca; orca.XShards; orca.init_orca_context()"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = {line.rsplit("|", 1)[-1].strip().partition(".")[0] for line in run.stderr.splitlines() if "|" in line}
    assert "orca" in imported
    assert not imported & set(HEAVY)


def modules_after(statement):
    """The modules that a fresh process holds after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(run.stdout.split())


def test_callbacks_import_the_loggers_but_no_backend_and_nothing_heavy():
    modules = modules_after("import orca.callbacks")
    assert "orca.loggers" in modules
    assert not modules & {*HEAVY, "tensorboard", "mlflow", "fsspec", "orca.backends.base"}


def test_loggers_import_no_callbacks():
    assert not any(name.startswith("orca.callbacks") for name in modules_after("import orca.loggers"))


def test_every_public_name_resolves():
    import orca

    assert all(getattr(orca, name) is not None for name in orca.__all__)
    assert set(dir(orca)) == set(orca.__all__)
