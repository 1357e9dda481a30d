"""Build a Horovod wheel for the torch, TensorFlow and MXNet in .venv, cache it and install it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from steps import PIP, PYTHON, ROOT, VENV, StepFailed, exit_on_failure, pinned, pip_install, run, say

PATCH_VERSION = 3  # Part of the cache key: increment with every change to EDITS or BUILD_SETTINGS.
FRAMEWORKS = ("torch", "tensorflow", "mxnet")
# Imported by Horovod at run time and by its setup.py at build time. setuptools also replaces distutils, which
# horovodrun imports and Python 3.12 has removed.
NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4", "setuptools")

BUILD_SETTINGS = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_MXNET": "1",
    # Horovod's CMake files request policies that CMake 4 has removed.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}


class Edit(NamedTuple):
    """One replacement in Horovod's sources, and why."""

    path: str
    old: str
    new: str
    why: str


EDITS = (
    Edit(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "torch and TensorFlow headers are C++17",
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "torch headers are C++17",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "",
        "TensorFlow no longer ships the XLA headers that this file includes",
    ),
    Edit(
        "horovod/common/gloo/gloo_context.cc",
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;",
        "  device_attr.iface = gloo_iface_ = global_context.gloo_iface_;\n"
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;",
        "process sets ignore HOROVOD_GLOO_IFACE and use whatever address the host name resolves to",
    ),
    Edit(
        "horovod/__init__.py",
        "__version__ = '0.28.1'",
        "__version__ = '0.28.1'\nprocess_sets_use_interface = True  # set by Orca's build",
        "backends/horovod_group.py reports a build without the edit before it",
    ),
)

# Reads package metadata: importing the frameworks just for their versions takes many seconds.
VERSIONS_PROGRAM = """
import importlib.metadata, json, platform, sys, sysconfig
versions = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({
    "torch": versions.get("torch"),
    "tensorflow": versions.get("tensorflow") or versions.get("tensorflow-cpu"),
    "mxnet": versions.get("mxnet"),
    "horovod": versions.get("horovod"),
    "python": sys.implementation.cache_tag,
    "platform": sysconfig.get_platform() + "-" + "".join(platform.libc_ver()),
}))
"""


def installed_versions() -> dict[str, str | None]:
    """Return the versions in the virtual environment that a Horovod wheel depends on."""
    if not PYTHON.exists():
        raise StepFailed("There is no .venv yet: run `python3 tools/environment.py full`.")
    done = subprocess.run([PYTHON, "-c", VERSIONS_PROGRAM], capture_output=True, text=True, check=True)
    versions: dict[str, str | None] = json.loads(done.stdout)
    missing = [framework for framework in FRAMEWORKS if versions[framework] is None]
    if missing:
        raise StepFailed(
            f"Horovod is built against torch, TensorFlow and MXNet, and .venv has no {' and no '.join(missing)}: "
            "run `python3 tools/environment.py full`."
        )
    return versions


def wheel_folder(versions: dict[str, str | None]) -> Path:
    """Return the cache folder of the wheel for these versions."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = "-".join(
        [
            pinned("horovod").replace("==", "-"),
            *(f"{framework}-{versions[framework]}" for framework in FRAMEWORKS),
            f"{versions['python']}-{versions['platform']}",
            f"patch{PATCH_VERSION}",
        ]
    )
    return cache / "orca" / "wheels" / re.sub(r"[^\w.+-]", "_", key)


def cached_wheel(folder: Path) -> Path | None:
    """Return the wheel in a cache folder, if any."""
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def unpack_and_edit(work: Path) -> Path:
    """Download Horovod's sources, unpack them and apply the edits, each of which must match exactly once."""
    options: list[str | Path] = [
        "--no-deps",
        "--no-build-isolation",
        "--no-binary",
        "horovod",
        "--dest",
        work,
    ]
    run("Horovod: sources", [*PIP, "download", *options, pinned("horovod")])
    archive = next(work.glob("horovod-*.tar.gz"), None)
    if archive is None:
        raise StepFailed(f"pip downloaded no source archive for {pinned('horovod')}.")
    shutil.unpack_archive(archive, work)
    tree = work / archive.name.removesuffix(".tar.gz")
    for edit in EDITS:
        path = tree / edit.path
        text = path.read_text() if path.exists() else ""
        if text.count(edit.old) != 1:
            raise StepFailed(
                f"{edit.path} in {archive.name} should contain {edit.old!r} once and contains it "
                f"{text.count(edit.old)} times: adapt EDITS in tools/{Path(__file__).name} ({edit.why})."
            )
        path.write_text(text.replace(edit.old, edit.new))
    return tree


def ensure_compiler() -> None:
    """Find a C++ compiler and make, or raise; install CMake from the package index if it is missing."""
    compiler = os.environ.get("CXX", "g++").split()[0]
    missing = [tool for tool in (compiler, "make") if shutil.which(tool) is None]
    if missing:
        raise StepFailed(
            f"Building Horovod needs {' and '.join(missing)}: install a C++ compiler and make "
            "(Debian, Ubuntu: apt-get install g++ make; Fedora: dnf install gcc-c++ make)."
        )
    if shutil.which("cmake") is None and not (VENV / "bin" / "cmake").exists():
        pip_install("Horovod: CMake", "cmake")


def search_path() -> str:
    """Return PATH with the virtual environment's programs first."""
    return f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def build(work: Path) -> Path:
    """Compile the wheel in a work folder."""
    ensure_compiler()
    tree = unpack_and_edit(work)
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # The caller's HOROVOD_* variables must not influence the build, as the cache key does not contain them.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment = {**inherited, **BUILD_SETTINGS, "MAKEFLAGS": f"-j{jobs}", "PATH": search_path()}
    # CMake locates MXNet by importing it, which works only after `import orca`.
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text("import orca\n")
    environment["PYTHONPATH"] = os.pathsep.join([str(work / "site"), str(ROOT)])
    log = VENV / "horovod-build.log"
    log.unlink(missing_ok=True)
    output = work / "wheel"
    options: list[str | Path] = [
        "-v",
        "--no-deps",
        "--no-build-isolation",
        "--no-cache-dir",
        "--wheel-dir",
        output,
    ]
    run(
        f"Horovod: compile with {jobs} jobs (several minutes, once)",
        [*PIP, "wheel", *options, tree],
        log=log,
        environment=environment,
        progress=lambda: _compiled_share(log),
    )
    wheel = cached_wheel(output)
    if wheel is None:
        raise StepFailed(f"pip built no Horovod wheel; its output is in {log}.")
    return wheel


def _compiled_share(log: Path) -> str:
    """Return make's progress, from the last `[ 45%]` in the log."""
    with log.open("rb") as written:
        written.seek(max(0, log.stat().st_size - 200_000))
        shares = re.findall(rb"^ *\[ *(\d+)%\]", written.read(), re.MULTILINE)
    return f"{int(shares[-1])} %" if shares else "configuring"


def install(wheel: Path) -> None:
    """Install a wheel, replacing any other build of Horovod."""
    pip_install("Horovod: install", "--no-deps", "--force-reinstall", wheel)


def check() -> None:
    """Reduce a tensor across two processes, once with each framework."""
    for framework in FRAMEWORKS:
        ranks: list[str | Path] = [VENV / "bin" / "horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"]
        program: list[str | Path] = [PYTHON, ROOT / "tools" / "check_horovod.py", framework]
        run(
            f"Horovod: reduce across two {framework} processes",
            [*ranks, *program],
            environment={**os.environ, "PATH": search_path()},
            seconds=180,
        )


def store(wheel: Path, folder: Path) -> None:
    """Copy a checked wheel into the cache; the final name appears only when the copy is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{wheel.name}.{os.getpid()}"
    shutil.copyfile(wheel, partial)
    os.replace(partial, folder / wheel.name)


def ensure_horovod(*, rebuild: bool = False) -> None:
    """Install the Horovod that matches the torch, TensorFlow and MXNet in .venv, from the cache or newly built."""
    versions = installed_versions()
    folder = wheel_folder(versions)
    note = VENV / "horovod.key"
    if not rebuild and versions["horovod"] and note.exists() and note.read_text() == folder.name:
        return
    pip_install("Horovod: dependencies", *NEEDS)
    wheel = None if rebuild else cached_wheel(folder)
    if wheel is not None:
        install(wheel)
    else:
        with tempfile.TemporaryDirectory(prefix="orca-horovod-") as work:
            wheel = build(Path(work))
            install(wheel)
            check()
            store(wheel, folder)
    note.write_text(folder.name)


def main() -> None:
    """Find or build the wheel, install it and, with --check, check it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="build even if the cache holds a wheel")
    parser.add_argument("--check", action="store_true", help="reduce a tensor across two processes afterwards")
    arguments = parser.parse_args()
    ensure_horovod(rebuild=arguments.rebuild)
    if arguments.check:
        check()
    say(f"Horovod is installed; its wheel is in {wheel_folder(installed_versions())}")


if __name__ == "__main__":
    exit_on_failure(main)
