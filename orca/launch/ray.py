"""Ranks as Ray actors, spread by a placement group that holds CPUs only while a call runs."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orca.core.machine import host_id, search_path
from orca.errors import ResourceError
from orca.launch.base import Absent, Delivery, Handle, Hello, Launcher, Meeting, Needs, Source, merged_ranges
from orca.launch.processes import kill, lives, wait_until
from orca.launch.rank import serve
from orca.launch.reach import reachable
from orca.launch.resources import written

if TYPE_CHECKING:
    from orca.launch.rank import RankContext
    from orca.launch.resources import Resources

_RESERVE_SECONDS = 60.0
_KILL_SECONDS = 4.0
_IDLE_SECONDS = 5.0
_READ_SECONDS = 1.0
_RAYLET_EXIT = 71
_SHOWN_NODES = 4
_NODE_LABEL = "ray.io/node-id"

_held: dict[str, dict[str, Sequence[Handle]]] = {}
_arrived = threading.Condition()


class _RankActor:
    """The Ray side of one rank: serves the gang in one thread, takes object references in another."""

    def __init__(self, modules: Sequence[str]) -> None:
        # Imported here, before the two threads could each import a part of the same package.
        for module in modules:
            importlib.import_module(module)

    def serve(self, meeting: Meeting, rank: int, path: list[str], gpus: int | None) -> None:
        devices = None if gpus is None else _own_gpus() if gpus else ()
        if gpus is not None and devices is not None and len(devices) != gpus:
            raise RuntimeError(f"Ray gave the GPUs {list(devices)} to rank {rank}, which needs {gpus}")
        raylet = os.getppid()

        def leave_with_raylet() -> None:
            # Ray ends the workers of a dead raylet in its own time; until then a call could still reach this one.
            if os.getppid() != raylet:
                os._exit(_RAYLET_EXIT)

        serve(meeting, rank, path=path, at_beat=leave_with_raylet, devices=devices)

    def hold(self, ticket: str, parts: dict[str, Any]) -> None:
        with _arrived:
            _held[ticket] = parts
            _arrived.notify_all()

    def drop(self, ticket: str) -> None:
        with _arrived:
            _held.pop(ticket, None)


def _own_gpus() -> tuple[str, ...]:
    """Return the ids of the GPUs that Ray has given to this actor."""
    import ray

    return tuple(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", ())))


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
    """Starts one actor per rank; a slot is a CPU of the Ray cluster, or what else a worker needs on one node."""

    runtime = "ray"
    asks = True
    reserves = True

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
        self._needs: Mapping[str, Needs] = {}
        self._parts_by_node: dict[str, dict[str, list[Handle]]] = {}
        self._busy = False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def require(self, resources: Resources) -> None:
        super().require(resources)
        # Devices belong to a process for as long as it lives: ranks that have some end with each call, and free them.
        self.warm = not self._actors_hold

    @property
    def _actors_hold(self) -> bool:
        """Whether the actors themselves hold the resources, and not only the placement group."""
        return bool(self.resources.gpus or self.resources.others)

    def slots(self, wanted: int = 0) -> int:
        import ray

        if self.resources.named:
            return sum(map(self.resources.fits, self._nodes_with_resources().values()))
        return int(ray.cluster_resources().get("CPU", 0))

    def _nodes_with_resources(self) -> dict[str, dict[str, float]]:
        """Return what each node has of the resources that a worker needs."""
        import ray

        return {
            node["NodeManagerAddress"] + "/" + node["NodeID"][:6]: {
                name: node["Resources"].get(name, 0.0) for name in self.resources.amounts
            }
            for node in ray.nodes()
            if node["Alive"]
        }

    def inventory(self) -> str:
        nodes = self._nodes_with_resources()
        shown = [f"{written(amounts)} on {node}" for node, amounts in list(nodes.items())[:_SHOWN_NODES]]
        more = f" and {len(nodes) - _SHOWN_NODES} more nodes" if len(nodes) > _SHOWN_NODES else ""
        return f": {'; '.join(shown)}{more}"

    def room(self) -> int:
        import ray

        fit = sum(self.resources.fits(node["Resources"]) for node, answers in _nodes_by_reach() if answers)
        held = self._workers if self._group is not None else 0
        return min(fit, self.resources.fits(ray.available_resources()) + held)

    def advice(self, world: int) -> str:
        if self.resources.named:
            return "Use fewer workers, or fewer resources for each, or add nodes to the Ray cluster."
        return (
            f"Use workers={self.slots()} or fewer, add nodes to the Ray cluster, or start a local one with "
            f'init_orca_context(runtime="ray", cores={world}).'
        )

    def start(self, world: int, meeting: Meeting) -> None:
        import ray
        from ray.util import placement_group_table
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._workers = world - self.servers
        lost = [node["NodeID"] for node, answers in _nodes_by_reach() if not answers]
        self._reserve([self.resources.amounts] * self._workers, lost)
        # In the order in which the engine places shards; consecutive ranks, which need consecutive rows, share a node.
        bundles = sorted(placement_group_table(self._group)["bundles_to_node_id"].items(), key=lambda item: item[1])
        # Servers run beside the workers and reserve nothing.
        self._nodes = [bundles[rank % self._workers][1] for rank in range(world)]
        actor = ray.remote(_RankActor)
        gpus = self.resources.gpus
        for rank, node in enumerate(self._nodes):
            worker = rank < self._workers
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            # Actors hold no CPUs: an idle warm gang must not starve the user's own Ray work.
            held: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": where}
            if worker and self._actors_hold:
                held = self._held_by(int(bundles[rank][0]))
            rank_actor = actor.options(max_restarts=0, max_concurrency=2, **held).remote(self._modules)
            self._actors.append(rank_actor)
            own = gpus if worker or gpus is None else 0
            self._serving.append(rank_actor.serve.remote(meeting, rank, search_path(), own))
        self._hand_over()

    def _held_by(self, bundle: int) -> dict[str, Any]:
        """Return the options of an actor that holds the resources of a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": self.resources.cpus or 1,
            "num_gpus": self.resources.gpus or 0,
            "resources": dict(self.resources.others),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, bundle),
        }

    def begin(self, sources: Mapping[str, Source], needs: Mapping[str, Needs]) -> Mapping[str, Delivery]:
        import ray

        # Pending transformations need the CPUs that an idle gang may still hold, so they run first.
        self._await_sources(sources)
        with self._lock:
            self._busy = True
        if self._actors and self._group is None:
            marks = {node["NodeID"]: f"node:{node['NodeManagerAddress']}" for node in ray.nodes()}
            amounts = self.resources.amounts
            self._reserve([{**amounts, marks[node]: 0.001} for node in self._nodes[: self._workers]])
        self._ticket = uuid.uuid4().hex
        self._parts = {name: source.handles() for name, source in sources.items()}
        self._needs = needs
        self._hand_over()
        return {name: _Ticket(self._ticket, name) for name in sources}

    def _hand_over(self) -> None:
        """Give the call's references to the actors that run."""
        if not self._actors:
            return
        self._parts_by_node = {node: self._parts_for(node) for node in dict.fromkeys(self._nodes)}
        for actor, node in zip(self._actors, self._nodes, strict=True):
            # Nobody reads the answer: Ray would print the error of an actor that has died.
            actor.hold.options(num_returns=0).remote(self._ticket, self._parts_by_node[node])

    def _parts_for(self, node: str) -> dict[str, list[Handle]]:
        """Return the shards of all sources, by name; those with rows that no rank of the node needs are cut."""
        ranks = [rank for rank, other in enumerate(self._nodes) if other == node]
        return {name: _cut(parts, self._needs.get(name), ranks, node) for name, parts in self._parts.items()}

    def finish(self) -> None:
        for actor in self._actors:
            actor.drop.options(num_returns=0).remote(self._ticket)
        self._parts, self._parts_by_node, self._needs = {}, {}, {}
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
                what = "worker process was killed or crashed"
                if "is unavailable" in text or not _is_alive(self._nodes[self._serving.index(ref)]):
                    what = "node is lost: its raylet was killed or crashed, or its host cannot be reached"
                reason = f"its Ray {what} ({detail[:200].strip()})"
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

    def _reserve(self, bundles: list[dict[str, float]], lost: Sequence[str] = ()) -> None:
        from ray.util import placement_group

        options: dict[str, Any] = {}
        if lost and "bundle_label_selector" in inspect.signature(placement_group).parameters:
            # Ray would wait for a node that is gone, until it has noticed that.
            options["bundle_label_selector"] = [{_NODE_LABEL: f"!in({','.join(lost)})"}] * len(bundles)
        self._group = placement_group(bundles, strategy="PACK", **options)
        if not self._group.wait(_RESERVE_SECONDS):
            self._release()
            needed = f"{len(bundles)} of them"
            has = f"{self.slots()} CPUs"
            if self.resources.named:
                has, needed = f"room for {self.slots()} workers with {self.resources} each", f"it for {len(bundles)}"
            raise ResourceError(
                f"Ray has {has} but did not free {needed} within "
                f"{_RESERVE_SECONDS:.0f} s: other work holds them. Wait for it, or use fewer workers."
            )

    def _release(self) -> None:
        from ray.util import remove_placement_group

        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)
            self._group = None


def _nodes_by_reach() -> list[tuple[dict[str, Any], bool]]:
    """Return the nodes that Ray takes for alive, each with whether its raylet accepts connections.

    Ray needs many seconds to notice that a node has died; its closed port tells at once.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    answers = reachable([(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes])
    return list(zip(nodes, answers, strict=True))


def _cut(shards: Sequence[Any], needs: Needs | None, ranks: Sequence[int], node: str) -> list[Handle]:
    """Return handles of all rows: of shards, of the needed rows of a shard, and of rows that stay where they are."""
    if needs is None:
        return list(shards)
    count = sum(shard.rows for shard in shards)
    ranges = [needs(count, rank) for rank in ranks]
    handles: list[Handle] = []
    first = 0
    for shard in shards:
        position, stop = first, first + shard.rows
        for low, high in merged_ranges(ranges, first, stop):
            if low > position:
                handles.append(Absent(low - position))
            whole = (low, high) == (first, stop)
            handles.append(shard if whole else shard.part(low - first, high - first, node))
            position = high
        if position < stop or not shard.rows:
            handles.append(Absent(stop - position))
        first = stop
    return handles


def _is_alive(node_id: str) -> bool:
    import ray

    return any(node["Alive"] for node in ray.nodes() if node["NodeID"] == node_id)


def _read(refs: Sequence[Any]) -> None:
    """Read the answers of calls that have ended or failed: Ray prints every error that nobody has read."""
    import ray

    for ref in refs:
        with contextlib.suppress(Exception):
            ray.get(ref, timeout=_READ_SECONDS)
