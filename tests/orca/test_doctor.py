"""The doctor trusts imports, not installations, and has a fix for everything that does not work."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orca import doctor
from orca.runtimes.packages import spark

KINDS = {"framework", "sync", "runtime", "backend"}
ENTRY_POINTS = """[orca.backends]
sound = sound_backend:backend
lacking = lacking_backend:backend
stalling = stalling_backend:backend
here = half_backend:backend
gone = half_backend:nothing

[orca.packages]
strange = strange_packages:PACKAGES
absent = strange_packages:NOTHING
wrong = strange_packages:WRONG
"""
STRANGE_PACKAGES = """
from orca.core.packages import Package

def hosts(quick):
    return "7 hosts", ""

PACKAGES = [
    Package("framework", "jax", "jax_of_no_name", "pip install jax", ("jax-of-no-name",)),
    Package("runtime", "dask", "sound_backend", "pip install dask", ("strange-backends",), inspect=hosts),
]
WRONG = ["jax"]
"""


def orca(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a separate process."""
    command = [sys.executable, "-m", "orca.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, env={**os.environ, **variables})


def by_name(output: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(output)["checks"]}


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH with third-party backends and packages that cannot be imported."""
    folder = tmp_path_factory.mktemp("strange")
    info = folder / "strange_backends-3.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-backends\nVersion: 3.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    modules = {
        "sound_backend": "backend = object()",
        "lacking_backend": "import nothing_of_this_name",
        "stalling_backend": "import time; time.sleep(600)",
        "half_backend": "backend = object()",
        "strange_packages": STRANGE_PACKAGES,
        "openvino": "raise RuntimeError('built for another machine\\nand more lines')",
        "ray": "import os; os.abort()",
        "keras": "import torch_of_another_name",
        # Replaced, as importing the real ones is slow.
        **dict.fromkeys(("tensorflow", "mxnet"), "__version__ = '1'"),
    }
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def strange_run(strange: str) -> subprocess.CompletedProcess[str]:
    """Require one sound and one lacking backend among packages that abort, raise and stall."""
    arguments = ("doctor", "--json", "--timeout", "8", "--require", "sound,lacking")
    return orca(*arguments, PYTHONPATH=strange)


def test_quick_lists_every_row_without_importing() -> None:
    start = time.monotonic()
    run = orca("doctor", "--quick", "--json")
    assert run.returncode == 0, run.stderr
    assert time.monotonic() - start < 20
    report = json.loads(run.stdout)
    assert report["orca"] == importlib.metadata.version("orca-estimator")
    assert {check["kind"] for check in report["checks"]} == KINDS
    assert [check["name"] for check in report["checks"]] == doctor.names()
    assert {"torch", "tensorflow", "keras", "mxnet", "openvino", "horovod.torch", "ray"} <= set(doctor.names())
    assert all(bool(check["fix"]) != check["usable"] for check in report["checks"])


def test_rows_are_grouped_by_kind_in_a_fixed_order() -> None:
    assert doctor.names()[:12] == [
        *("torch", "tensorflow", "keras", "mxnet", "openvino"),
        *("horovod", "horovod.torch", "horovod.tensorflow", "horovod.mxnet"),
        *("local", "ray", "spark"),
    ]


def test_packages_of_others_are_listed_after_ours_and_a_failed_declaration_is_a_row(strange: str) -> None:
    run = orca("doctor", "--quick", "--json", PYTHONPATH=strange)
    assert run.returncode == 0, run.stderr
    checks = by_name(run.stdout)
    listed = list(checks)
    assert listed.index("openvino") + 1 == listed.index("jax") < listed.index("horovod")
    assert listed.index("spark") + 1 == listed.index("dask")
    assert (checks["jax"]["usable"], checks["jax"]["fix"]) == (False, "pip install jax")
    assert (checks["dask"]["version"], checks["dask"]["why"]) == ("3.2", "import not tried; 7 hosts")
    assert "NOTHING" in checks["absent"]["why"]
    assert checks["wrong"]["why"].startswith("TypeError: strange_packages:WRONG is not a sequence of")
    for name in ("absent", "wrong"):
        assert (checks[name]["kind"], checks[name]["usable"]) == ("packages", False)
        assert checks[name]["fix"] == "pip install --upgrade --force-reinstall strange-backends"


@pytest.mark.slow
def test_table_has_a_version_for_what_works_and_a_fix_for_what_does_not() -> None:
    run = orca("doctor", "--require", "local")
    assert run.returncode == 0, run.stderr
    assert "\x1b" not in run.stdout
    lines = run.stdout.split("\n\n", 1)[1].splitlines()
    note = lines[0].index("note")
    rows = [(line, after) for line, after in zip(lines[1:], [*lines[2:], ""], strict=True) if line[0] != " "]
    assert [line.split()[1] for line, _ in rows] == doctor.names()
    for line, after in rows:
        usable, version = line.split()[2:4]
        if usable == "yes":
            assert version != "-"
        else:
            assert usable == "no"
            assert line[note:].strip(), "no reason given"
            assert after.startswith(" " * note + "fix: "), line


@pytest.mark.slow
def test_required_and_absent_is_exit_code_1_with_the_name(
    strange_run: subprocess.CompletedProcess[str],
) -> None:
    assert strange_run.returncode == 1
    assert "lacking" in strange_run.stderr
    assert "sound" not in strange_run.stderr


@pytest.mark.slow
def test_installed_is_not_usable(strange_run: subprocess.CompletedProcess[str]) -> None:
    checks = by_name(strange_run.stdout)
    assert checks["sound"]["usable"]
    assert checks["sound"]["version"] == "3.2"
    assert checks["lacking"]["fix"] == "pip install nothing_of_this_name"
    assert "took more than 8 s" in checks["stalling"]["why"]
    # Two backends of one module: a failure of one does not affect the other.
    assert checks["here"]["usable"]
    assert "nothing" in checks["gone"]["why"]
    assert checks["openvino"]["why"] == "RuntimeError: built for another machine"
    assert "SIGABRT" in checks["ray"]["why"]
    assert checks["keras"]["fix"] == "pip install torch_of_another_name"
    for name in ("lacking", "stalling", "gone", "openvino", "ray", "keras"):
        assert not checks[name]["usable"]
        assert checks[name]["fix"]


def test_required_and_present_is_exit_code_0() -> None:
    assert orca("doctor", "--quick", "--require", "local, local").returncode == 0


def test_unknown_requirement_is_exit_code_2_with_the_known_names() -> None:
    run = orca("doctor", "--require", "local,spak")
    assert run.returncode == 2
    assert "Did you mean 'spark'?" in run.stderr
    assert all(name in run.stderr for name in doctor.names())


@pytest.mark.skipif(not doctor._exists("pyspark"), reason="needs pyspark")
def test_spark_without_java_is_not_usable(tmp_path: Path) -> None:
    run = orca("doctor", "--quick", "--json", "--require", "spark", JAVA_HOME=str(tmp_path))
    assert run.returncode == 1
    spark = by_name(run.stdout)["spark"]
    assert f"JAVA_HOME={tmp_path}" in spark["why"]
    assert "openjdk-17" in spark["fix"]


@pytest.mark.parametrize(
    ("version", "with_module", "words"),
    [
        ("1.8.0_292", 1, "is Java 8"),
        ("11.0.2", 0, "is Java 11"),
        ("25.0.2", 1, "lacks a module"),
        ("17.0.15", 0, ""),
        ("21", 0, ""),
    ],
)
def test_java_is_checked_for_its_version_and_for_the_module_that_spark_loads(
    version: str, with_module: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    answer = f"echo 'openjdk version \"{version}\" 2025-01-01' >&2"
    java.write_text(f"#!/bin/sh\n{answer}\ncase $1 in --add-modules*) exit {with_module};; esac\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    note, fix = spark.java(quick=False)
    assert words in note
    assert bool(fix) == bool(words)


@pytest.mark.skipif(not doctor._exists("pyspark"), reason="needs pyspark")
def test_spark_does_not_start_with_a_java_that_lacks_its_module(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    version = "echo 'openjdk version \"21.0.1\" 2025-01-01' >&2"
    java.write_text(f"#!/bin/sh\n{version}\ncase $1 in --add-modules*) exit 1;; esac\n")
    java.chmod(0o755)
    code = "from orca import init_orca_context; init_orca_context(runtime='spark')"
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=170, env=environment)
    last = run.stderr.strip().splitlines()[-1]
    assert 'MissingPackageError: runtime="spark" has no Java that it can use: Java 21' in last
    assert "lacks a module" in last
    assert "Run: apt-get install openjdk-17" in last


def test_bare_command_shows_help_and_version_is_the_installed_one() -> None:
    bare, version = orca(), orca("--version")
    assert bare.returncode == version.returncode == 0
    assert "doctor" in bare.stdout
    assert version.stdout.strip() == f"orca {importlib.metadata.version('orca-estimator')}"


def test_doctor_imports_no_framework_and_no_typer() -> None:
    code = "import sys, orca.doctor; orca.doctor.names(); print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "tensorflow", "keras", "mxnet", "openvino", "ray", "pyspark", "typer"]
    run = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr
