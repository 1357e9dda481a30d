"""Says which frameworks, runtimes and backends work here, and which command mends those that do not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from orca.errors import ArgumentError, suggest

GROUP = "orca.backends"
JAVA_FIX = "apt-get install openjdk-17-jre-headless  # or point JAVA_HOME to a full Java 17 or later"
# Spark starts its JVM with this module, and cut-down Java runtimes do not carry it.
JAVA_MODULE = "--add-modules=jdk.incubator.vector"
MARK = "orca-probe:"
# The parent's path, so that the probe finds what this process would find and nothing of the current folder.
PROBE = f"""
import importlib.metadata, json, sys
sys.path[:] = json.loads(sys.argv[1])
report = []
for value in sys.argv[2:]:
    try:
        found = importlib.metadata.EntryPoint("", value, "").load()
        report.append(dict(version=str(getattr(found, "__version__", ""))))
    except BaseException as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        report.append(dict(error=f"{{type(error).__name__}}: {{lines[0].strip()}}"))
print("\\n{MARK}" + json.dumps(report), flush=True)
"""


@dataclass(frozen=True)
class Check:
    """One line of the table; ``fix`` is empty exactly when ``usable`` is true."""

    kind: str
    name: str
    usable: bool
    version: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Package:
    """What has to import, which distributions bring it, and the command that installs it."""

    kind: str
    name: str
    module: str
    fix: str
    distributions: tuple[str, ...]
    first: str = ""  # a module of Orca that has to be imported before
    built: str = ""  # a compiled file without which the module is an empty shell


def _extra(kind: str, name: str, *distributions: str, module: str = "", extra: str = "") -> Package:
    fix = f"pip install 'orca-estimator[{extra or name}]'"
    return Package(kind, name, module or name, fix, distributions or (name,))


HOROVOD = partial(
    Package, "sync", fix="python tools/build_horovod.py  # in a checkout of Orca", distributions=("horovod",)
)
PACKAGES = (
    _extra("framework", "torch"),
    _extra("framework", "tensorflow", "tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
    _extra("framework", "keras", extra="tensorflow"),
    replace(_extra("framework", "mxnet"), first="orca.backends.mxnet.strategies"),
    _extra("framework", "openvino"),
    HOROVOD("horovod", "horovod"),
    HOROVOD("horovod.torch", "horovod.torch", built="torch/mpi_lib*"),
    HOROVOD("horovod.tensorflow", "horovod.tensorflow", built="tensorflow/mpi_lib*"),
    replace(HOROVOD("horovod.mxnet", "horovod.mxnet", built="mxnet/mpi_lib*"), first="orca.backends.mxnet.strategies"),
    Package("runtime", "local", "orca", "pip install --force-reinstall orca-estimator", ("orca-estimator",)),
    _extra("runtime", "ray"),
    _extra("runtime", "spark", "pyspark", "pyspark-client", module="pyspark"),
)


def names() -> list[str]:
    """Return every name that ``diagnose`` reports on.

    >>> {"torch", "horovod", "local", "spark"} <= set(names())
    True
    """
    return list(dict.fromkeys([package.name for package in PACKAGES] + [entry.name for entry in _backends()]))


def diagnose(quick: bool = False, timeout: float = 120.0) -> list[Check]:
    """Check everything, by importing it in a process of its own unless ``quick``.

    >>> [check.usable for check in diagnose(quick=True) if check.name == "local"]
    [True]
    """
    entries = _backends()
    by_module: dict[str, list[str]] = {}
    for entry in entries if not quick else ():
        by_module.setdefault(entry.module, []).append(entry.value)
    # Two at a time: an import is one busy core and up to 700 MB.
    with ThreadPoolExecutor(max_workers=2) as pool:
        packages = pool.map(lambda package: _check_package(package, quick, timeout), PACKAGES)
        probed = pool.map(lambda values: dict(zip(values, _probe(values, timeout), strict=True)), by_module.values())
        found = {value: told for module in probed for value, told in module.items()}
        return [*packages, *(_check_backend(entry, found.get(entry.value)) for entry in entries)]


def missing(required: Iterable[str], checks: Sequence[Check]) -> list[Check]:
    """Return the required checks that are not usable.

    >>> missing(["ray"], [Check("runtime", "ray", False, fix="pip install ray")])[0].fix
    'pip install ray'
    """
    wanted = set(required)
    return [check for check in checks if check.name in wanted and not check.usable]


def parse_required(text: str) -> list[str]:
    """Split ``torch,spark`` into known names.

    >>> parse_required("torch, spark")
    ['torch', 'spark']
    """
    known = names()
    required = [word.strip() for word in text.split(",") if word.strip()]
    for word in required:
        if word not in known:
            hint = suggest(word.lower(), known)
            raise ArgumentError(f"--require {word}: no such name.{hint} Known: {', '.join(known)}.")
    return required


def table(checks: Sequence[Check]) -> str:
    """Lay the checks out as plain text.

    >>> print(table([Check("runtime", "ray", False, why="not installed", fix="pip install ray")]))
    kind     name  usable  version  note
    runtime  ray   no      -        not installed
                                    fix: pip install ray
    """
    rows = [("kind", "name", "usable", "version", "note")]
    for check in checks:
        usable, version = "yes" if check.usable else "no", check.version or "-"
        rows.append((check.kind, check.name, usable, version, check.why))
        if check.fix:
            rows.append(("", "", "", "", f"fix: {check.fix}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)] + [0]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def report(checks: Sequence[Check], quick: bool = False) -> dict[str, object]:
    """Return the same as one object for ``--json``."""
    return {
        "orca": importlib.metadata.version("orca-estimator"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "quick": quick,
        "checks": [asdict(check) for check in checks],
    }


def _backends() -> list[importlib.metadata.EntryPoint]:
    # A checkout that is also installed shows its entry points twice.
    return list({(entry.name, entry.value): entry for entry in importlib.metadata.entry_points(group=GROUP)}.values())


def _check_package(package: Package, quick: bool, timeout: float) -> Check:
    check = partial(Check, package.kind, package.name)
    distribution, version = _installed(package)
    shim = not package.first or _exists(package.first)
    if not distribution:
        fix = package.fix if shim else "not available in this version"
        return check(False, why=f"{package.distributions[0]} is not installed", fix=fix)
    if not shim:
        why = "installed; needs the compatibility import"
        return check(False, version, why, "not available in this version")
    if package.built and not _compiled(package):
        return check(False, version, f"horovod was built without {package.module}", package.fix)
    note = f"{os.cpu_count()} cores" if package.name == "local" else ""
    if package.name == "spark":
        note, fix = _java(quick)
        if fix:
            return check(False, version, note, fix)
    if quick:
        return check(True, version, "; ".join(filter(None, ["import not tried", note])))
    *before, found = _probe([value for value in (package.first, package.module) if value], timeout)
    found = next((told for told in before if "error" in told), found)
    if "error" not in found:
        return check(True, version or found["version"], note)
    again = package.fix
    if again.startswith("pip ") and version:
        again = f"pip install --force-reinstall {distribution}=={version.partition('+')[0]}"
    return check(False, version, found["error"], _fix(found["error"], again))


def _check_backend(entry: importlib.metadata.EntryPoint, found: dict[str, str] | None) -> Check:
    """What the import of a backend says of it, if it was tried."""
    distribution = entry.dist.name if entry.dist else ""
    check = partial(Check, "backend", entry.name, version=entry.dist.version if entry.dist else "")
    note = f"from {distribution}" if distribution else entry.value
    if found is None:
        return check(usable=True, why=f"import not tried; {note}")
    if "error" not in found:
        return check(usable=True, why=note)
    again = f"pip install --upgrade --force-reinstall {distribution or entry.module.partition('.')[0]}"
    return check(usable=False, why=f"{found['error']} ({note})", fix=_fix(found["error"], again))


def _fix(error: str, otherwise: str) -> str:
    if error.startswith("no answer"):
        return "orca doctor --timeout 600"
    absent = re.search(r"No module named '(\w+)", error)
    if not absent:
        return otherwise
    fixes = {package.module: package.fix for package in PACKAGES}
    return fixes.get(absent[1], f"pip install {absent[1]}")


def _installed(package: Package) -> tuple[str, str]:
    for distribution in package.distributions:
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Containers and conda may bring a module without its metadata.
    return (package.distributions[0], "") if _exists(package.module.partition(".")[0]) else ("", "")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _compiled(package: Package) -> bool:
    spec = importlib.util.find_spec(package.module.partition(".")[0])
    folders = spec.submodule_search_locations if spec else None
    return any(any(Path(folder).glob(package.built)) for folder in folders or ())


def _probe(values: Sequence[str], timeout: float) -> list[dict[str, str]]:
    """Import in a fresh process, because an import may abort, hang, or change the process it runs in.

    Returns the version or the error of each; what ends the process is the error of all.
    """
    command = [sys.executable, "-P", "-c", PROBE, json.dumps(sys.path), *values]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    quiet = subprocess.DEVNULL
    # A file and no pipe: a pipe that a grandchild holds open would outlast the time limit.
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            done = subprocess.run(command, stdin=quiet, stdout=out, stderr=quiet, timeout=timeout, env=env)
        except subprocess.TimeoutExpired:
            return [{"error": f"no answer: the import took more than {timeout:g} s"}] * len(values)
        out.seek(0)
        lines = out.read().splitlines()
    for line in reversed(lines):
        if line.startswith(MARK):
            found: list[dict[str, str]] = json.loads(line.removeprefix(MARK))
            return found
    code = done.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return [{"error": f"the import ended its process ({how})"}] * len(values)


def _java(quick: bool) -> tuple[str, str]:
    """Return a note, and a fix if the Java that Spark would start does not serve."""
    home = os.environ.get("JAVA_HOME", "")
    # Spark does not look at PATH when JAVA_HOME is set, right or wrong.
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if not java:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java in JAVA_HOME or PATH"
        return where, JAVA_FIX
    if quick:
        return f"java at {java}", ""
    try:
        plain, full = (_java_says(java, *options) for options in ((), (JAVA_MODULE,)))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not start: {error}", JAVA_FIX
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', plain.stderr)
    if not match:
        return f"{java} -version gave no version", JAVA_FIX
    if int(match[1]) < 17:
        return f"Spark needs Java 17 or later; {java} is Java {match[1]}", JAVA_FIX
    if full.returncode:
        return f"Java {match[1]} at {java} lacks a module that Spark needs ({JAVA_MODULE})", JAVA_FIX
    return f"Java {match[1]} at {java}", ""


def _java_says(java: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [java, *options, "-version"]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
