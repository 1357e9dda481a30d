"""The MXNet backends as cases of the conformance checks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from orca import Estimator, create_config
from orca.testing import BackendCase
from tests.conformance.mxnet_models import CONFIG, TwoIn, loss_creator, model_creator

ADAM = create_config("adam", {"learning_rate": 0.02}, log_interval=0)


def case(backend: str, variant: str = "", flags: dict[str, Any] | None = None, **options: Any) -> BackendCase:
    """A case for a backend with these options of from_mxnet."""

    def make(workers, **more):
        plain = {"config": CONFIG, "model_creator": model_creator, "loss_creator": loss_creator}
        return Estimator.from_mxnet(backend=backend, workers=workers, **{**plain, **options, **more})

    return BackendCase(
        f"mxnet.{backend}",
        make,
        variant=variant,
        weights=lambda est: named(est.get_model()),
        reference=adam_reference if options.get("config") is ADAM else reference,
        outputs=lambda est, x: est.get_model()(mx.nd.array(x)).asnumpy(),
        scores=scores,
        noisy=lambda workers, **more: make(workers, config=ADAM, metrics="accuracy", **more),
        several=lambda workers: make(workers, model_creator=two_creator, loss_creator=first_loss, seed=0),
        exact_resume=False,
        **(flags or {}),
    )


def two_creator(config):
    net = TwoIn()
    net.initialize(mx.init.Xavier())
    return net


def first_loss(config):
    return FirstLoss()


class FirstLoss(gluon.loss.L2Loss):
    """Compares the first of several outputs."""

    def hybrid_forward(self, F, outputs, label):
        return super().hybrid_forward(F, outputs[0], label)


def adam_reference(batches, seed):
    return reference(batches, seed, ADAM)


def reference(batches, seed, config=CONFIG):
    """Gluon itself, one process."""
    mx.random.seed(seed)
    net, loss, trainer = model_creator({}), loss_creator({}), None
    for x, y in batches:
        if trainer is None:
            net(mx.nd.array(x[:2]))
            trainer = gluon.Trainer(net.collect_params(), config["optimizer"], config["optimizer_params"])
        with mx.autograd.record():
            value = loss(net(mx.nd.array(x)), mx.nd.array(y))
        value.backward()
        trainer.step(len(x))
    return named(net)


def named(net: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.data().asnumpy() for name, value in net._collect_params_with_prefix().items()}


def scores(est, x, y):
    return {"loss": float(loss_creator({})(est.get_model()(mx.nd.array(x)), mx.nd.array(y)).mean().asscalar())}


SERVED = {"servers": True}
PLAIN = [case("parameter_server", flags=SERVED), case("horovod")]
VARIANTS = {
    case("parameter_server", "2 servers", flags=SERVED, num_servers=2): [
        *["even_shards", "uneven_shards", "empty_shard", "short_last_batch", "last_batch_of_one"],
        *["exact_scores", "resume_after_a_killed_rank", "killed_server"],
    ],
    case("parameter_server", "async", flags=SERVED | {"lockstep": False}, kvstore="dist_async", config=ADAM): [
        *["even_shards", "learns_asynchronously", "exact_scores"],
        *["raised_error", "killed_rank", "stopped_rank", "killed_server"],
    ],
}
