"""Ranks as Ray actors, spread by a placement group that holds CPUs only while a call runs."""

from __future__ import annotations

import contextlib
import importlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orca.core.machine import host_id, search_path
from orca.errors import ResourceError
from orca.launch.base import Delivery, Handle, Hello, Launcher, Meeting, Needs, Source
from orca.launch.processes import kill, lives, wait_until
from orca.launch.rank import serve

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

_RESERVE_SECONDS = 60.0
_KILL_SECONDS = 4.0
_IDLE_SECONDS = 5.0
_READ_SECONDS = 1.0

_held: dict[str, dict[str, Sequence[Handle]]] = {}
_arrived = threading.Condition()


class _RankActor:
    """The Ray side of one rank: serves the gang in one thread, takes object references in another."""

    def __init__(self, modules: Sequence[str]) -> None:
        # Imported here, before the two threads could each import a part of the same package.
        for module in modules:
            importlib.import_module(module)

    def serve(self, meeting: Meeting, rank: int, path: list[str]) -> None:
        serve(meeting, rank, path=path)

    def hold(self, ticket: str, parts: dict[str, Any]) -> None:
        with _arrived:
            _held[ticket] = parts
            _arrived.notify_all()

    def drop(self, ticket: str) -> None:
        with _arrived:
            _held.pop(ticket, None)


@dataclass(frozen=True)
class _Ticket:
    """The delivery of a source whose references reach the actor through Ray.

    Ray counts references that it passes itself; in our own channel it would have to pin the objects forever.
    """

    ticket: str
    name: str

    def open(self, context: RankContext) -> Sequence[Handle]:
        with _arrived:
            if not _arrived.wait_for(lambda: self.ticket in _held, timeout=60):
                raise TimeoutError("Ray did not deliver the data's references to this worker within 60 s.")
            return _held[self.ticket][self.name]


class RayLauncher(Launcher):
    """Starts one actor per rank; a slot is a CPU of the Ray cluster."""

    runtime = "ray"

    def __init__(self, modules: Sequence[str] = ()) -> None:
        import ray

        self._modules = tuple(modules)
        self.bind = ray.util.get_node_ip_address()
        self._actors: list[Any] = []
        self._serving: list[Any] = []
        self._nodes: list[str] = []
        self._workers = 0
        self._group: Any = None
        self._ticket = ""
        self._parts: dict[str, Any] = {}
        self._busy = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def slots(self, wanted: int = 0) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    def advice(self, world: int) -> str:
        return (
            f"Use workers={self.slots()} or fewer, add nodes to the Ray cluster, or start a local one with "
            f'init_orca_context(runtime="ray", cores={world}).'
        )

    def start(self, world: int, meeting: Meeting) -> None:
        import ray
        from ray.util import placement_group_table
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._workers = world - self.servers
        self._reserve([{"CPU": 1.0}] * self._workers)
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        # Servers run beside the workers and reserve nothing.
        self._nodes = [nodes[rank % self._workers] for rank in range(world)]
        actor = ray.remote(_RankActor)
        for rank, node in enumerate(self._nodes):
            # Actors hold no CPUs: an idle warm gang must not starve the user's own Ray work.
            rank_actor = actor.options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=2,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(self._modules)
            self._actors.append(rank_actor)
            self._serving.append(rank_actor.serve.remote(meeting, rank, search_path()))
        self._hand_over()

    def begin(self, sources: Mapping[str, Source], needs: Mapping[str, Needs]) -> Mapping[str, Delivery]:
        import ray

        # Pending transformations need the CPUs that an idle gang may still hold, so they run first.
        self._await_sources(sources)
        with self._lock:
            self._busy = True
        if self._actors and self._group is None:
            marks = {node["NodeID"]: f"node:{node['NodeManagerAddress']}" for node in ray.nodes()}
            self._reserve([{"CPU": 1.0, marks[node]: 0.001} for node in self._nodes[: self._workers]])
        self._ticket = uuid.uuid4().hex
        self._parts = {name: source.handles() for name, source in sources.items()}
        self._hand_over()
        return {name: _Ticket(self._ticket, name) for name in sources}

    def _hand_over(self) -> None:
        """Give the call's references to the actors that run."""
        for actor in self._actors:
            # Nobody reads the answer: Ray would print the error of an actor that has died.
            actor.hold.options(num_returns=0).remote(self._ticket, self._parts)

    def finish(self) -> None:
        for actor in self._actors:
            actor.drop.options(num_returns=0).remote(self._ticket)
        self._parts = {}
        self._busy = False
        if self._timer is not None:
            self._timer.cancel()
        # Ray needs up to a second to return freed CPUs: keep them for the next call, but not for long.
        self._timer = threading.Timer(_IDLE_SECONDS, self.rest)
        self._timer.daemon = True
        self._timer.start()

    def rest(self) -> None:
        with self._lock:
            if not self._busy:
                self._release()

    def deaths(self) -> dict[int, str]:
        import ray

        gone: dict[int, str] = {}
        ended, _ = ray.wait(self._serving, num_returns=len(self._serving), timeout=0) if self._serving else ([], [])
        for ref in ended:
            try:
                ray.get(ref)
                reason = "its actor ended early"
            except ray.exceptions.RayActorError as error:
                text = " ".join(str(error).split())
                detail = text.partition("Worker exit detail:")[2] or text
                reason = f"its Ray worker process was killed or crashed ({detail[:200].strip()})"
            except Exception as error:
                reason = f"its actor raised {error}"
            gone[self._serving.index(ref)] = reason
        return gone

    def lost(self) -> dict[int, str]:
        return self.deaths()

    def stop(self, hellos: Mapping[int, Hello], patience: float) -> None:
        import ray

        with contextlib.suppress(Exception):
            ray.wait(self._serving, num_returns=len(self._serving), timeout=patience)
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        self._make_sure(hellos)
        _read(self._serving)
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        self._actors, self._serving, self._nodes = [], [], []

    def _make_sure(self, hellos: Mapping[int, Hello]) -> None:
        """End processes that ignore Ray's kill, such as stopped ones, with a signal from a task on their node."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = host_id()

        def left() -> list[tuple[int, Hello]]:
            return [(r, h) for r, h in hellos.items() if h.host_id != here or lives(h)]

        if wait_until(lambda: not left(), 1.0):
            return
        tasks = []
        for rank, hello in left():
            where = NodeAffinitySchedulingStrategy(self._nodes[rank], soft=True)
            task = ray.remote(kill).options(num_cpus=0, scheduling_strategy=where)
            tasks.append(task.remote(hello))
        with contextlib.suppress(Exception):
            ray.wait(tasks, num_returns=len(tasks), timeout=_KILL_SECONDS)
        _read(tasks)

    @staticmethod
    def _await_sources(sources: Mapping[str, Source]) -> None:
        """Wait for pending transformations, which need the CPUs first."""
        import ray

        refs = list(dict.fromkeys(shard.ref for source in sources.values() for shard in source.handles()))
        if refs:
            ray.wait(refs, num_returns=len(refs), fetch_local=False)

    def _reserve(self, bundles: list[dict[str, float]]) -> None:
        from ray.util import placement_group

        self._group = placement_group(bundles, strategy="PACK")
        if not self._group.wait(_RESERVE_SECONDS):
            self._release()
            raise ResourceError(
                f"Ray has {self.slots()} CPUs but did not free {len(bundles)} of them within "
                f"{_RESERVE_SECONDS:.0f} s: other work holds them. Wait for it, or use fewer workers."
            )

    def _release(self) -> None:
        from ray.util import remove_placement_group

        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)
            self._group = None


def _read(refs: Sequence[Any]) -> None:
    """Read the answers of calls that have ended or failed: Ray prints every error that nobody has read."""
    import ray

    for ref in refs:
        with contextlib.suppress(Exception):
            ray.get(ref, timeout=_READ_SECONDS)
