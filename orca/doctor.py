"""Reports which frameworks, runtimes and backends work here, and how to fix the ones that do not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

from orca.core.packages import Package
from orca.errors import ArgumentError, suggest

BACKENDS = "orca.backends"
PACKAGES = "orca.packages"
"""The entry-point groups of what is checked; other projects add to them."""
KINDS = ("framework", "sync", "runtime")
"""Kinds of packages in the order of the table; others follow."""
MARK = "orca-probe:"
# Uses the parent's path, so that the probe finds what this process would find and nothing in the current folder.
PROBE = f"""
import importlib.metadata, json, sys
sys.path[:] = json.loads(sys.argv[1])
results = []
for value in sys.argv[2:]:
    try:
        loaded = importlib.metadata.EntryPoint("", value, "").load()
        results.append(dict(version=str(getattr(loaded, "__version__", ""))))
    except BaseException as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        results.append(dict(error=f"{{type(error).__name__}}: {{lines[0].strip()}}"))
print("\\n{MARK}" + json.dumps(results), flush=True)
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


def names() -> list[str]:
    """Return every name that ``diagnose`` reports on.

    >>> "local" in names()
    True
    """
    packages, failures = _declared()
    backends = _entries(BACKENDS)
    return list(dict.fromkeys([line.name for lines in (packages, failures, backends) for line in lines]))


def diagnose(quick: bool = False, timeout: float = 120.0) -> list[Check]:
    """Check every framework, runtime and backend.

    >>> [check.usable for check in diagnose(quick=True) if check.name == "local"]
    [True]

    Args:
        quick: Whether to look only at what is installed, instead of importing it in a separate process.
        timeout: Seconds that one import may take.

    Returns:
        One check per line of the table.
    """
    packages, failures = _declared()
    fixes = {package.module: package.fix for package in packages}
    entries = _entries(BACKENDS)
    by_module: dict[str, list[str]] = {}
    for entry in entries if not quick else ():
        by_module.setdefault(entry.module, []).append(entry.value)
    # Two at a time: an import keeps one core busy and takes up to 700 MB.
    with ThreadPoolExecutor(max_workers=2) as pool:
        checks = pool.map(lambda package: _check_package(package, fixes, quick, timeout), packages)
        probes = pool.map(lambda values: dict(zip(values, _probe(values, timeout), strict=True)), by_module.values())
        results = {value: result for probe in probes for value, result in probe.items()}
        backends = [_check_entry("backend", entry, results.get(entry.value), fixes) for entry in entries]
        return [*checks, *failures, *backends]


def missing(required: Iterable[str], checks: Sequence[Check]) -> list[Check]:
    """Return the required checks that are not usable.

    >>> missing(["ray"], [Check("runtime", "ray", False, fix="pip install ray")])[0].fix
    'pip install ray'
    """
    selected = set(required)
    return [check for check in checks if check.name in selected and not check.usable]


def parse_required(text: str) -> list[str]:
    """Split the names of ``--require``.

    >>> parse_required("local, ray")
    ['local', 'ray']

    Args:
        text: Names separated by commas.

    Raises:
        ArgumentError: If ``diagnose`` does not report on one of the names.
    """
    known = names()
    required = [word.strip() for word in text.split(",") if word.strip()]
    for word in required:
        if word not in known:
            hint = suggest(word.lower(), known)
            raise ArgumentError(f"--require {word}: no such name.{hint} Known: {', '.join(known)}.")
    return required


def table(checks: Sequence[Check]) -> str:
    """Format the checks as plain text.

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
    """Return the checks and the versions of Orca and Python as one object for ``--json``."""
    return {
        "orca": importlib.metadata.version("orca-estimator"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "quick": quick,
        "checks": [asdict(check) for check in checks],
    }


def _entries(group: str) -> list[EntryPoint]:
    # A checkout that is also installed lists its entry points twice.
    return list({(entry.name, entry.value): entry for entry in importlib.metadata.entry_points(group=group)}.values())


def _declared() -> tuple[list[Package], list[Check]]:
    """Return the declared packages in the order of the table, and a check for each declaration that fails."""
    packages: list[Package] = []
    failures: list[Check] = []
    for entry in _entries(PACKAGES):
        try:
            declared = list(entry.load())
            if not all(isinstance(package, Package) for package in declared):
                raise TypeError(f"{entry.value} is not a sequence of orca.core.packages.Package")
            packages += declared
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {_first_line(error)}"}
            failures.append(_check_entry("packages", entry, result, {}))
    order = {kind: position for position, kind in enumerate(KINDS)}
    packages.sort(key=lambda package: (order.get(package.kind, len(order)), package.order))
    return list(dict.fromkeys(packages)), failures


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def _check_package(package: Package, fixes: Mapping[str, str], quick: bool, timeout: float) -> Check:
    check = partial(Check, package.kind, package.name)
    distribution, version = _installed(package)
    importable = not package.first or _exists(package.first)
    if not distribution:
        fix = package.fix if importable else "not available in this version"
        return check(False, why=f"{package.distributions[0]} is not installed", fix=fix)
    if not importable:
        why = "installed; needs the compatibility import"
        return check(False, version, why, "not available in this version")
    if package.built and not _compiled(package):
        return check(False, version, f"{distribution} was built without {package.module}", package.fix)
    note, fix = package.inspect(quick) if package.inspect is not None else ("", "")
    if fix:
        return check(False, version, note, fix)
    if quick:
        return check(True, version, "; ".join(filter(None, ["import not tried", note])))
    *before, result = _probe([value for value in (package.first, package.module) if value], timeout)
    result = next((earlier for earlier in before if "error" in earlier), result)
    if "error" not in result:
        return check(True, version or result["version"], note)
    reinstall = package.fix
    if reinstall.startswith("pip ") and version:
        reinstall = f"pip install --force-reinstall {distribution}=={version.partition('+')[0]}"
    return check(False, version, result["error"], _fix(result["error"], reinstall, fixes))


def _check_entry(kind: str, entry: EntryPoint, result: Mapping[str, str] | None, fixes: Mapping[str, str]) -> Check:
    """Turn the result of loading an entry point into a check; the result is None if loading was not tried."""
    distribution = entry.dist.name if entry.dist else ""
    check = partial(Check, kind, entry.name, version=entry.dist.version if entry.dist else "")
    note = f"from {distribution}" if distribution else entry.value
    if result is None:
        return check(usable=True, why=f"import not tried; {note}")
    if "error" not in result:
        return check(usable=True, why=note)
    reinstall = f"pip install --upgrade --force-reinstall {distribution or entry.module.partition('.')[0]}"
    return check(usable=False, why=f"{result['error']} ({note})", fix=_fix(result["error"], reinstall, fixes))


def _fix(error: str, otherwise: str, fixes: Mapping[str, str]) -> str:
    if error.startswith("no answer"):
        return "orca doctor --timeout 600"
    absent = re.search(r"No module named '(\w+)", error)
    return fixes.get(absent[1], f"pip install {absent[1]}") if absent else otherwise


def _installed(package: Package) -> tuple[str, str]:
    """Return the distribution that provides a package and its version; empty if there is none."""
    for distribution in package.distributions:
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Containers and conda may provide a module without its metadata.
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

    Return the version or the error of each value; what ends the process is the error of all.
    """
    command = [sys.executable, "-P", "-c", PROBE, json.dumps(sys.path), *values]
    quiet = subprocess.DEVNULL
    # A file instead of a pipe: a pipe that a grandchild holds open would outlast the time limit.
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.run(command, stdin=quiet, stdout=out, stderr=quiet, timeout=timeout)
        except subprocess.TimeoutExpired:
            return [{"error": f"no answer: the import took more than {timeout:g} s"}] * len(values)
        out.seek(0)
        lines = out.read().splitlines()
    for line in reversed(lines):
        if line.startswith(MARK):
            results: list[dict[str, str]] = json.loads(line.removeprefix(MARK))
            return results
    code = process.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return [{"error": f"the import ended its process ({how})"}] * len(values)
