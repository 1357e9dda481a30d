"""The ranks of an estimator: which gang runs them, which state they hold, and what `explain` says of them."""

from __future__ import annotations

from collections.abc import Sequence

from orca.backends.worker.job import Job
from orca.core.machine import usable_cpus
from orca.launch.gang import Gang
from orca.metrics import Metric
from orca.runs.values import Learned, Setup
from orca.runtimes.context import Context


def gang_of(setup: Setup, context: Context) -> Gang:
    """Return the warm gang for this setup, or a new one."""
    context.prefer(setup.preload)
    return context.gang(setup.topology.ranks, setup.preload, setup.servers, setup.resources)


def job_of(setup: Setup, learned: Learned, gang: Gang, metrics: Sequence[Metric] | None = None) -> Job:
    """Return the job for the ranks; the state is sent only if they lack it. Needs the gang's lock."""
    gang.refresh(ask=True)
    if setup.backend.traits.exclusive and gang.running and gang.holds is not None and gang.holds[0] != learned.owner:
        gang.stop()
    gang.roles = setup.topology.roles
    is_warm = gang.running and gang.holds == (learned.owner, learned.version)
    return Job(
        setup.backend,
        setup.spec,
        learned.owner,
        learned.version,
        None if is_warm else learned.state,
        learned.seed,
        tuple(setup.metrics if metrics is None else metrics),
        setup.workers,
    )


def remember(learned: Learned, gang: Gang) -> None:
    """Note which state the ranks hold now."""
    if gang.running:
        gang.holds = learned.owner, learned.version


def explain(setup: Setup, learned: Learned, context: Context) -> str:
    """Describe what will run where, before anything starts."""
    backend, ranks = setup.backend, setup.topology.ranks
    launcher = context.launcher(setup.preload)
    launcher.require(setup.resources)
    workers = ranks - setup.servers
    obstacle = launcher.obstacle(workers)
    slots = launcher.slots()
    threads = setup.resources.cpus or max(1, usable_cpus() // ranks)
    lines = [
        f"{backend.framework.name} model, backend {backend.name}, epoch {learned.epoch}, seed {learned.seed}",
        f"runtime {context.runtime}: {workers} of {slots} slots"
        + (f"; {setup.servers} more ranks serve the workers and need none" if setup.servers else ""),
        *backend.notes(setup.spec),
        f"ranks 0 to {ranks - 1}: {threads} thread{'s' if threads > 1 else ''} each"
        + (" if they share one host" if context.cluster.many_hosts and setup.resources.cpus is None else ""),
    ]
    if setup.per_worker.named:
        hidden = "; GPUs are hidden" if setup.per_worker.gpus == 0 else ""
        own = "; each rank sees only its own GPUs" if setup.per_worker.gpus else hidden
        lines.append(f"resources per worker: {setup.per_worker}{own}")
    if not backend.framework.inference_only:
        lines += [
            f"control channel: {launcher.bind}, a port held by the driver; rendezvous: {backend.traits.rendezvous}",
            f"data: each global batch is split evenly across {setup.workers} ranks",
        ]
    if obstacle:
        lines.append(f"will not start: {obstacle}")
    gang = context.warm(ranks, setup.preload, setup.servers, setup.resources)
    for hello in gang.places if gang is not None else ():
        gpus = "" if hello.devices is None else f", GPUs {', '.join(hello.devices) or 'none'}"
        lines.append(f"rank {hello.rank}: running, host {hello.host}, process {hello.pid}{gpus}")
    return "\n".join(lines)
