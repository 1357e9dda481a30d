"""What each worker of a gang needs: CPUs, GPUs and resources by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orca.core.arguments import check_flag, check_resources
from orca.errors import ArgumentError


@dataclass(frozen=True)
class Resources:
    """The resources of one worker. Without any, a worker takes one slot and sees what its host offers."""

    cpus: int | None = None
    gpus: int | None = None
    """Zero hides the GPUs of a host, None leaves them visible to all of its ranks."""
    others: tuple[tuple[str, float], ...] = ()
    """Further resources by name, in alphabetical order."""

    @classmethod
    def create(cls, resources_per_worker: object = None, use_gpu: object = False) -> Resources:
        """Check what users pass to a constructor.

        >>> Resources.create({"CPU": 2, "license": 0.5}, use_gpu=True)
        Resources(cpus=2, gpus=1, others=(('license', 0.5),))
        """
        amounts = dict(check_resources("resources_per_worker", resources_per_worker) or {})
        if check_flag("use_gpu", use_gpu) and not amounts.setdefault("GPU", 1):
            raise ArgumentError('use_gpu=True and resources_per_worker={"GPU": 0} contradict each other.')
        cpus, gpus = (None if name not in amounts else int(amounts.pop(name)) for name in ("CPU", "GPU"))
        return cls(cpus, gpus, tuple(sorted(amounts.items())))

    @property
    def named(self) -> bool:
        """Whether a resource was named."""
        return self != Resources()

    @property
    def amounts(self) -> dict[str, float]:
        """The amounts above zero by name; a worker needs at least one CPU."""
        gpus = {"GPU": float(self.gpus)} if self.gpus else {}
        return {"CPU": float(self.cpus or 1), **gpus, **dict(self.others)}

    def times(self, count: int) -> Resources:
        """Return what a process with `count` workers needs.

        >>> Resources(gpus=1, others=(("license", 0.5),)).times(2)
        Resources(cpus=2, gpus=2, others=(('license', 1.0),))
        """
        if count == 1 or not self.named:
            return self
        gpus = None if self.gpus is None else self.gpus * count
        others = tuple((name, amount * count) for name, amount in self.others)
        return replace(self, cpus=(self.cpus or 1) * count, gpus=gpus, others=others)

    def fits(self, available: Mapping[str, float]) -> int:
        """Return how many workers one host has room for.

        >>> Resources(cpus=2, gpus=1).fits({"CPU": 8, "GPU": 2})
        2
        """
        # A small tolerance, as amounts may be fractions: 0.3 fits three times into 0.9.
        return int(min(available.get(name, 0.0) / amount + 1e-9 for name, amount in self.amounts.items()))

    def __str__(self) -> str:
        return written(self.amounts)


def written(amounts: Mapping[str, float]) -> str:
    """Return amounts as text.

    >>> written({"CPU": 2.0, "license": 0.5})
    '2 CPU, 0.5 license'
    """
    return ", ".join(f"{amount:.12g} {name}" for name, amount in amounts.items())
