"""The models that a process serves: loads them, follows their aliases in the store, and replaces them without a gap."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orca.errors import ArgumentError, NotStoredError, OrcaError, suggest
from orca.serving import metrics
from orca.serving.checks import check_rows
from orca.serving.datatypes import DATATYPES
from orca.serving.engine import Engine
from orca.serving.line import Line
from orca.serving.messages import HttpError
from orca.serving.settings import Settings
from orca.store import Store, Version
from orca.store.names import Reference, parse

Array = np.ndarray[Any, Any]
log = logging.getLogger("orca.serving")
_STOP_SECONDS = 1.0
_MOST_NAMES = 64
"""References besides the served ones that are remembered, such as ``name@3`` and ``name^``."""


class Served:
    """A version in memory, ready to compute."""

    def __init__(self, version: Version, engine: Engine, line: Line, timeout: float) -> None:
        self.version = version
        self.inputs = version.signature.inputs
        self.outputs = version.signature.outputs
        self.number = str(version.number)
        self.heads = [(port.name, DATATYPES[str(np.dtype(port.dtype))]) for port in self.outputs]
        """The names and types of the outputs in the Open Inference Protocol."""
        self._engine = engine
        self._line = line
        self._timeout = timeout

    async def compute(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for one array per input; shapes and types have been checked."""
        if len(arrays) > 1:
            check_rows(self.inputs, arrays)
        return await self._line.compute(arrays, self._timeout)

    async def stop(self, seconds: float) -> bool:
        """Wait for the running computation; return whether it ended."""
        return await self._line.stop(seconds)


class Catalog:
    """The served models by the names that clients use for them."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._followed: dict[str, Served] = {}
        """By reference, as in --model: ``name`` or ``name@alias``."""
        self._extras: OrderedDict[str, Served] = OrderedDict()
        """Other references to served models, loaded on first use."""
        self._loading = asyncio.Lock()
        self._seen = -1
        self._poller: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.ready: dict[str, Served] = {}
        """Every name that is answered at once."""
        self.descriptions: dict[str, dict[str, Any]] = {}
        """By name: all versions and aliases that clients may use."""
        self.problems: dict[str, str] = {}
        self.reachable = True

    # Names

    @property
    def names(self) -> list[str]:
        """The names of all served models."""
        return sorted(self.descriptions)

    def current(self, name: str) -> Served | None:
        """Return what a plain name means now."""
        return next((served for served in self._followed.values() if served.version.name == name), None)

    async def find(self, name: str, visible: Callable[[str], bool]) -> Served:
        """Return the model of a name such as ``name``, ``name@3`` or ``name^``; raise 404 if it is not served."""
        served = self.ready.get(name)
        if served is not None:
            return served
        try:
            reference = parse("name", name)
        except ArgumentError:
            raise HttpError(404, "The server has no model of this name.") from None
        if reference.name not in self.descriptions:
            near = suggest(reference.name, filter(visible, self.descriptions))
            raise HttpError(404, f"The server has no model {reference.name!r}.{near}")
        served = self._among_followed(reference) or await self._extra(name, reference)
        if served is None:
            raise HttpError(404, f"The server has no {name!r} of the model {reference.name!r}.")
        return served

    def _among_followed(self, reference: Reference) -> Served | None:
        """Return the served version if a number means it."""
        for text, served in self._followed.items():
            if served.version.name == reference.name and not reference.back:
                if reference.ref == served.version.number or (reference.ref is None and parse("name", text).ref):
                    return served
        return None

    async def _extra(self, name: str, reference: Reference) -> Served | None:
        if reference.name not in self._followed:
            return None  # only one alias is served
        async with self._loading:
            if name in self.ready:
                return self.ready[name]
            try:
                version = await asyncio.to_thread(self._store.models.resolve, str(reference))
                served = await self._load(version)
            except NotStoredError:
                return None
            except OrcaError as error:
                log.error("%s cannot be loaded: %s", reference, error)
                raise HttpError(503, f"{reference} cannot be loaded now.", [(b"retry-after", b"5")]) from None
            self._remember(name, served)
        return served

    def _remember(self, name: str, served: Served) -> None:
        self._extras[name] = served
        self._extras.move_to_end(name)
        followed = set(map(id, self._followed.values()))
        while len(self._extras) > _MOST_NAMES or len({id(entry) for entry in self._extras.values()} - followed) > max(
            1, self._settings.versions
        ):
            self._extras.popitem(last=False)
        self._publish()

    def _publish(self) -> None:
        """Replace the names at once: a request sees the old or the new model, never none."""
        self.ready = {**self._extras, **self._followed}

    # Loading

    async def _load(self, version: Version) -> Served:
        for served in (*self._followed.values(), *self._extras.values()):
            if (served.version.name, served.version.sha256) == (version.name, version.sha256):
                if served.version.number == version.number:
                    return served
        engine, joins = await asyncio.to_thread(self._compile, version)
        line = Line(engine, self._settings.queue, self._settings.join if joins else 1, version.name)
        return Served(version, engine, line, self._settings.timeout)

    def _compile(self, version: Version) -> tuple[Engine, bool]:
        path = self._store.models.ir_path(version)
        engine = Engine(str(path), version.signature, self._settings.threads)
        return engine, engine.warm()

    # Following the store

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after each change of the store."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Load all models; raise if one cannot be served. Then follow the store."""
        self._seen = await asyncio.to_thread(self._store.changes)
        problems = await self._refresh()
        if problems:
            raise problems[0]
        metrics.STORE_UP.set(1)
        self._poller = asyncio.create_task(self._poll())

    async def stop(self) -> bool:
        """Stop following the store; return whether all computations have ended."""
        if self._poller is not None:
            self._poller.cancel()
        ended = [await served.stop(_STOP_SECONDS) for served in set(self.ready.values())]
        return all(ended)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll)
            metrics.flush()
            try:
                changes = await asyncio.to_thread(self._store.changes)
                if changes != self._seen:
                    problems = await self._refresh()
                    for listener in self._listeners:
                        listener()
                    if not problems:
                        self._seen = changes  # otherwise it is tried again
                self._set_reachable(None)
            except Exception as error:
                self._set_reachable(error)

    def _set_reachable(self, error: Exception | None) -> None:
        if (error is None) != self.reachable:
            self.reachable = error is None
            metrics.STORE_UP.set(int(self.reachable))
            if error is None:
                log.warning("The store can be reached again.")
            else:
                log.warning("The store cannot be reached; models in memory are served. %s", error)

    async def _refresh(self) -> list[OrcaError]:
        """Load what the references mean now, and then let it take over."""
        references = self._settings.models or tuple(await asyncio.to_thread(self._store.models.list))
        followed: dict[str, Served] = {}
        failures: list[OrcaError] = []
        problems: dict[str, str] = {}
        for reference in references:
            try:
                version = await asyncio.to_thread(self._store.models.resolve, reference)
                followed[reference] = await self._load(version)
            except OrcaError as error:
                failures.append(error)
                problems[reference] = "It is not in the store." if isinstance(error, NotStoredError) else str(error)
                if self.problems.get(reference) != problems[reference]:
                    log.error("--model %s: %s", reference, error)
                if reference in self._followed and not isinstance(error, NotStoredError):
                    followed[reference] = self._followed[reference]
        extras = await self._refreshed_extras()
        descriptions = await asyncio.to_thread(self._describe, followed)
        self._report_switches(followed)
        self._followed, self._extras, self.descriptions, self.problems = followed, extras, descriptions, problems
        self._publish()
        return failures

    async def _refreshed_extras(self) -> OrderedDict[str, Served]:
        extras: OrderedDict[str, Served] = OrderedDict()
        for name in list(self._extras):
            try:
                version = await asyncio.to_thread(self._store.models.resolve, name)
                extras[name] = await self._load(version)
            except OrcaError as error:
                log.warning("%s is not served any more: %s", name, error)
        return extras

    def _describe(self, followed: dict[str, Served]) -> dict[str, dict[str, Any]]:
        descriptions: dict[str, dict[str, Any]] = {}
        for reference, served in followed.items():
            name = served.version.name
            entry = descriptions.setdefault(name, {"versions": set(), "aliases": {}})
            if parse("name", reference) == Reference(name):
                versions = self._store.models.versions(name)
                entry["versions"] |= {version.number for version in versions}
                entry["aliases"] |= {alias: version.number for version in versions for alias in version.aliases}
            else:
                entry["versions"].add(served.version.number)
                ref = parse("name", reference).ref
                if isinstance(ref, str):
                    entry["aliases"][ref] = served.version.number
        return descriptions

    def _report_switches(self, followed: dict[str, Served]) -> None:
        for reference, served in followed.items():
            before = self._followed.get(reference)
            metrics.VERSION.labels(served.version.name, reference).set(served.version.number)
            if before is not None and before is not served:
                metrics.SWITCHES.labels(served.version.name).inc()
                log.info("%s: version %s takes over from %s", reference, served.number, before.number)
