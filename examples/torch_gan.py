"""A small GAN on points on a circle: a custom training step with two optimizers.

Run ``python examples/torch_gan.py`` where Orca is installed with torch; it takes half a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

from orca import Estimator, init_orca_context
from orca.backends.torch.custom import Step

NOISE = 4


class Gan(nn.Module):
    """Both networks in one module; `predict` runs the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.generator(noise)


def optimizers(model: Gan, config: dict[str, Any]) -> dict[str, torch.optim.Optimizer]:
    return {
        "generator": torch.optim.Adam(model.generator.parameters(), config["lr"], betas=(0.5, 0.99)),
        "discriminator": torch.optim.Adam(model.discriminator.parameters(), config["lr"], betas=(0.5, 0.99)),
    }


def train_step(step: Step) -> dict[str, torch.Tensor]:
    """Train both networks for one step; each loss is the mean over this rank's rows, which `minimize` weights."""
    model, real = step.model, step.x
    fake = model(torch.randn(len(real), NOISE, device=real.device))
    discriminator_loss = (
        softplus(-model.discriminator(real)).mean() + softplus(model.discriminator(fake.detach())).mean()
    )
    step.minimize(discriminator_loss, "discriminator")
    generator_loss = softplus(-model.discriminator(fake)).mean()
    step.minimize(generator_loss, "generator")
    return {"discriminator_loss": discriminator_loss, "generator_loss": generator_loss}


def ring(rows: int) -> np.ndarray[Any, Any]:
    """Return points near a circle of radius 1."""
    rng = np.random.default_rng(0)
    angle, radius = rng.uniform(0, 2 * np.pi, rows), rng.normal(1, 0.05, rows)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype("float32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="torch_distributed", choices=["torch_distributed", "horovod"])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    start = time.perf_counter()
    with init_orca_context(runtime=options.runtime, cores=max(2, options.workers)):
        est = Estimator.from_torch(
            model=Gan,
            optimizer=optimizers,
            train_step=train_step,
            config={"lr": 1e-3},
            backend=options.backend,
            workers=options.workers,
            seed=options.seed,
        )
        history = est.fit({"x": ring(4096)}, epochs=options.epochs, batch_size=128)
        noise = np.random.default_rng(1).normal(size=(2000, NOISE)).astype("float32")
        points = est.predict(noise)

    radius = np.hypot(points[:, 0], points[:, 1])
    near = float((abs(radius - 1) < 0.2).mean())
    eighths = np.floor(np.arctan2(points[:, 1], points[:, 0]) / (np.pi / 4)).astype(int) + 4
    share = np.bincount(eighths.clip(0, 7), minlength=8) / len(points)
    print(history[-5:])
    print(f"\n{options.backend} on {options.runtime}, {options.workers} workers: {time.perf_counter() - start:.1f} s")
    print(f"share of generated points in each eighth of the circle: {', '.join(f'{value:.0%}' for value in share)}")
    print(f"generated points near the circle: {near:.1%} (mean radius {radius.mean():.2f})")
    return 0 if near >= 0.8 and share.min() >= 0.04 else 1


if __name__ == "__main__":
    sys.exit(main())
