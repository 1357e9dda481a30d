"""Servers that tests of a store start: PostgreSQL on a socket of its own, and an S3 service."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PLACES = ("/usr/lib/postgresql/*/bin/{}", "/usr/local/pgsql/bin/{}", "/opt/homebrew/bin/{}")


def program(name: str) -> str | None:
    """Return the path of a program of PostgreSQL, which Debian does not put on PATH."""
    known = shutil.which(name)
    if known is not None:
        return known
    for pattern in _PLACES:
        matches = sorted(Path("/").glob(pattern.format(name).lstrip("/")))
        if matches:
            return str(matches[-1])
    return None


@contextmanager
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server without TCP; yield the URL of its database. Skip the test if there is none."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'orca-estimator[postgres]'")
    initdb, control = program("initdb"), program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("needs the PostgreSQL server (Debian, Ubuntu: apt-get install postgresql)")
    # The server refuses to run as root; Debian's package creates a user for it.
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    data = folder / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
            folder.chmod(0o755)

        def run(*command: str) -> None:
            as_user = {"user": user} if os.geteuid() == 0 else {}
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, **as_user)
            assert done.returncode == 0, done.stdout + done.stderr

        run(initdb, "-D", str(data), "-U", "orca", "-A", "trust", "-N", "-E", "UTF8", "--no-locale")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=100"
        run(control, "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "-t", "60", "start")
        try:
            yield f"postgresql+psycopg://orca@/postgres?host={folder}"
        finally:
            run(control, "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start an S3 service with a bucket; yield a URL in it."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto[server]").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        name = f"models-{uuid.uuid4().hex[:12]}"
        s3fs.S3FileSystem().mkdir(name)
        yield f"s3://{name}/store"
    finally:
        server.stop()
