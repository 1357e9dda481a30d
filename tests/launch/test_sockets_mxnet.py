"""Sockets of MXNet jobs: no port on one host, Unix sockets that only this user can open, and no pickles."""

from __future__ import annotations

import os
import pickle
import socket
import stat
import time
from pathlib import Path

import pytest

from orca.backends.mxnet import local_sockets
from orca.backends.mxnet.serving import ServerLoop
from orca.context import Context
from tests.conformance.mxnet_cases import PLAIN, VARIANTS
from tests.launch.sockets import LOOPBACK, Touch, Watch, train_among_strangers

PARAMS = [
    pytest.param(one, id=one.title, marks=[pytest.mark.horovod] if one.name.endswith("horovod") else [])
    for one in [*PLAIN, *VARIANTS]
]


@pytest.mark.parametrize("one", PARAMS)
def test_mxnet(one, local: Context, tmp_path):
    watch = Watch(one.title, tmp_path)
    train_among_strangers(one, watch)
    assert watch.addresses <= LOOPBACK


def test_a_server_does_not_unpickle_what_it_receives(tmp_path, capsys):
    server = ServerLoop(1)
    server._command(0, pickle.dumps(Touch(tmp_path / "executed")), None)
    assert not (tmp_path / "executed").exists()
    assert "Ignored a command" in capsys.readouterr().err


def sockets() -> dict[str, int]:
    """Return the Unix sockets that ps-lite may have opened, with their permissions."""
    entries = [entry for entry in Path("/tmp").iterdir() if entry.name.isdecimal() and entry.is_socket()]
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in entries}


def test_only_this_user_can_connect_and_nothing_stays(local: Context, tmp_path):
    case, before = PLAIN[0], sockets()
    found: dict[str, int] = {}

    class Looking(Watch):
        def look_and_intrude(self, moment: str) -> None:
            found.update(sockets())

    with Looking(case.title, tmp_path).during_fit(2) as pause:
        est = case.make(2, seed=3)
        est.fit(*case.data(48), batch_size=16, callbacks=[pause])
    new = found.keys() - before.keys()
    assert len(new) == 4  # two workers, a server and the scheduler
    assert {found[name] & 0o077 for name in new} == {0}
    est.shutdown()
    assert not new & sockets().keys()


def test_sockets_of_killed_ranks_are_swept_and_no_others():
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as new:
        paths = {name: local_sockets.path_of(number) for number, name in enumerate(("live", "new", "stale"), 10**9)}
        try:
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(paths["stale"]))
            live.bind(str(paths["live"]))
            live.listen()
            new.bind(str(paths["new"]))
            hour_ago = time.time() - 3600
            for name in ("live", "stale"):
                os.utime(paths[name], (hour_ago, hour_ago))
            local_sockets.sweep()
            assert {name for name, path in paths.items() if path.exists()} == {"live", "new"}
        finally:
            for path in paths.values():
                path.unlink(missing_ok=True)
