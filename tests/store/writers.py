"""Processes that write to one store at the same time, and processes that are killed while they write.

``python -m tests.store.writers <command> <path> <db> …`` runs one scenario and prints what it has seen as JSON. The
processes are forked from this one, which has imported everything and has no threads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orca.store import Store
from orca.store.packing.facts import FORMAT

WATCHED = ("files.py", "database.py", "records.py", "tables.py", "folders.py", "models.py", "parts.py", "datasets.py")
"""The modules of the store in which a put can be killed, before and after every call that they make."""
EFFECTS = {
    "open",
    "close",
    "write",
    "fsync",
    "rename",
    "replace",
    "mkdir",
    "rmdir",
    "unlink",
    "remove",
    "flock",
    "execute",
}
"""Calls of the system that change something; all other steps are calls of the store's own functions."""
PORT = {"name": "x", "dtype": "float32", "shape": [-1, 6]}
WEIGHTS = b"w" * 200_000


def fill(folder: Path) -> dict[str, Any]:
    """Write the files of a version that holds the number of this process."""
    (folder / "native").mkdir()
    contents = {"model.xml": b"<net/>", "model.bin": WEIGHTS, "native/state.json": str(os.getpid()).encode()}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    from orca.store.files import checksum_of

    files = {name: {"sha256": checksum_of(folder / name), "size": len(content)} for name, content in contents.items()}
    return {
        "format": FORMAT,
        "kind": "openvino",
        "signature": {"inputs": [PORT], "outputs": [PORT]},
        "native": {"form": "openvino"},
        "attributes": {"pid": os.getpid()},
        "files": files,
    }


def is_own(frame: Any) -> bool:
    """Return whether a frame is one of the store's functions that write."""
    name = frame.f_code.co_filename
    return "/orca/" in name and name.endswith(WATCHED)


def is_watched(frame: Any) -> bool:
    """Return whether a call is made by the store, directly or in a package that it calls."""
    for _ in range(20):
        if frame is None or is_own(frame):
            return frame is not None
        frame = frame.f_back
    return False


def forked(work: Callable[[], None]) -> int:
    """Run some work in a child process; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(code)


def joined(pids: list[int], seconds: float = 150.0) -> list[int]:
    """Return how these processes ended; kill those that take too long."""
    end, codes = time.monotonic() + seconds, {}
    while len(codes) < len(pids) and time.monotonic() < end:
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for pid in set(pids) - set(codes):
        os.kill(pid, signal.SIGKILL)
        codes[pid] = 999
    return [codes[pid] for pid in pids]


class Killer:
    """Counts the calls that the store's modules make, and kills this process before one of them."""

    def __init__(self, at: int | None, ends: Path | None = None) -> None:
        self.at, self.count, self._ends = at, 0, ends

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        is_step = event == "call" and is_own(frame)
        if not is_step and not (event == "c_call" and argument.__name__ in EFFECTS and is_watched(frame)):
            return
        self.count += 1
        if self.at is not None and self.count >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, work: Callable[[], None]) -> None:
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        if self._ends is not None:
            self._ends.write_text(str(self.count))


def killed_model(path: str, db: str | None, every: int) -> dict[str, Any]:
    """Kill a put of a model at its calls, one after another."""
    count = Path(sys.argv[-1])
    Store(path, db).models.add("net", fill, ["production"])
    work = lambda: Store(path, db).models.add("net", fill, ["production"])  # noqa: E731
    assert joined([forked(lambda: Killer(None, count).run(work))]) == [0]
    total = int(count.read_text())
    seen: Counter[str] = Counter()
    # The last steps come after the commit.
    for step in sorted({*range(1, total + 1, every), *range(total - 5, total + 1)}):
        before = Store(path, db).models.resolve("net@production").number
        code = joined([forked(lambda step=step: Killer(step).run(work))])
        # The last steps clean up, and their number depends on threads: the put may have ended before them.
        assert code == [-signal.SIGKILL] or (code == [0] and step > total - 10), step
        store = rested(path, db)
        version = store.models.resolve("net@production")
        assert version.number in (before, before + 1), step
        assert version.number == store.models.resolve("net").number, "the alias and the version were one transaction"
        store.models.stored(version)  # raises if a file is missing or damaged
        seen["new" if version.number > before else "old"] += 1
        swept(store, path, db, seen)
    numbers = [version.number for version in Store(path, db).models.versions("net")]
    assert numbers == list(range(1, len(numbers) + 1)), numbers
    return {"steps": total, **seen}


def killed_dataset(path: str, db: str | None, every: int) -> dict[str, Any]:
    """Kill an append and a replacement at their calls, one after another."""
    count = Path(sys.argv[-1])
    rows = lambda: Store(path, db).datasets.get("rows")  # noqa: E731
    Store(path, db).datasets.put(list(range(10)), "rows")
    seen: Counter[str] = Counter()
    for number, options in enumerate(({"append": True}, {"replace": True})):
        work = lambda options=options: Store(path, db).datasets.put([7] * 5, "rows", **options)  # noqa: E731
        assert joined([forked(lambda work=work: Killer(None, count).run(work))]) == [0]
        total = int(count.read_text())
        for step in range(1 + number, total + 1, every):
            before = rows()
            code = joined([forked(lambda step=step, work=work: Killer(step).run(work))])
            if code == [0]:
                break  # fewer parts to remove than in the first call
            assert code == [-signal.SIGKILL], step
            store = rested(path, db)
            after = rows()
            assert after in (before, before + [7] * 5 if "append" in options else [7] * 5), (step, len(after))
            seen["old" if after == before else "new"] += 1
            swept(store, path, db, seen)
    return dict(seen)


def rested(path: str, db: str | None) -> Store:
    """Open the store, once a server has noticed that the client was killed."""
    store = Store(path, db)
    if db is not None and db.startswith("postgresql"):
        with store._database.reading() as connection:
            for _ in range(500):
                query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
                if connection.exec_driver_sql(query).scalar_one() <= 1:
                    break
                time.sleep(0.01)
        time.sleep(0.05)
    return store


def swept(store: Store, path: str, db: str | None, seen: Counter[str]) -> None:
    """Check that a sweep leaves exactly the files that are named, and that these are right."""
    assert store.verify() == []
    seen["leftovers"] += len(store.sweep())
    assert store.verify() == []
    on_disk = set(store._files.walk("models")) | set(store._files.walk("datasets")) | set(store._files.walk("drafts"))
    rows = store.models._records.all_rows()
    named = {f"{row.folder}/{name}" for row in rows for name in [*row.manifest["files"], "manifest.json"]}
    named |= {part["file"] for row in store.datasets._rows() for part in row.manifest["parts"]}
    assert on_disk == named, on_disk ^ named
    assert store.sweep() == []


def stopped(path: str, db: str | None) -> dict[str, Any]:
    """Sweep while puts are stopped in the middle; they have to find their files when they continue."""
    work = lambda: Store(path, db).models.add("net", halting)  # noqa: E731

    def halting(folder: Path) -> dict[str, Any]:
        manifest = fill(folder)
        os.kill(os.getpid(), signal.SIGSTOP)
        return manifest

    pids = [forked(work) for _ in range(3)]
    for pid in pids:
        os.waitpid(pid, os.WUNTRACED)
    store = Store(path, db)
    removed = store.sweep()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    codes = joined(pids)
    return {"removed": removed, "codes": codes, "problems": store.verify(), "left": store.sweep()}


def race(path: str, db: str | None, writers: int, puts: int) -> dict[str, Any]:
    """Put, move an alias and read at the same time, on a store that nobody has created."""
    pids = [forked(lambda: putting(path, db, puts)) for _ in range(writers)]
    movers = [forked(lambda: moving(path, db, "stage", puts)) for _ in range(2)]
    readers = [forked(lambda: reading(path, db, writers * puts)) for _ in range(2)]
    codes = joined([*pids, *movers, *readers])
    store = Store(path, db)
    versions = store.models.versions("net")
    by_writer = Counter(version.attributes["pid"] for version in versions)
    numbers = [version.number for version in versions]
    return {
        "codes": codes,
        "numbers": numbers,
        "by_writer": sorted(by_writer.values()),
        "problems": store.verify(),
        "changes": store.changes(),
        "left": store.sweep(),
    }


def putting(path: str, db: str | None, puts: int) -> None:
    store = Store(path, db)
    for _ in range(puts):
        store.models.add("net", fill, ["production"])


def moving(path: str, db: str | None, alias: str, moves: int) -> None:
    store = Store(path, db)
    while not store.models.exists("net"):
        time.sleep(0.01)
    for _ in range(moves):
        latest = store.models.resolve("net").number
        number = 1 + os.getpid() % latest
        moved = store.models.alias(f"net@{number}", alias)
        assert (moved.number, alias in moved.aliases) == (number, True)
        assert store.models.resolve(f"net@{alias}").number >= 1  # the other process may have moved it again


def reading(path: str, db: str | None, last: int) -> None:
    store, seen = Store(path, db), 0
    while seen < last:
        for name in store.models.list():
            version = store.models.resolve(f"{name}@production")
            assert version.number >= seen, "an alias moved back"
            seen = version.number
            store.models.stored(version)
        time.sleep(0.01)


def first(path: str, db: str | None, count: int) -> dict[str, Any]:
    """Open a new store from several processes at once."""
    codes = joined([forked(lambda: Store(path, db).tokens.add("x") and None) for _ in range(count)])
    return {"codes": codes, "tokens": len(Store(path, db).tokens.list())}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    "killed_model": killed_model,
    "killed_dataset": killed_dataset,
    "stopped": stopped,
    "race": race,
    "first": first,
}

if __name__ == "__main__":
    _, name, path, db, *numbers = sys.argv
    if name.startswith("killed"):
        numbers = numbers[:-1]
    print(json.dumps(SCENARIOS[name](path, db or None, *map(int, numbers))))
    shutil.rmtree(path, ignore_errors=True)
