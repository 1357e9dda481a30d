"""The arguments of `from_mxnet`: checked on the driver, turned into objects on the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mxnet as mx

from orca.backends.mxnet.nets import GluonNet, Net
from orca.backends.mxnet.symbol_net import SymbolNet
from orca.backends.mxnet.symbols import Graph
from orca.core.arguments import check_choice, check_function, check_mapping, wrong
from orca.errors import ArgumentError

STORES = ("dist_sync", "dist_device_sync", "dist_async")


@dataclass(frozen=True)
class MXNetSpec:
    """Creators of a model, its loss and its metrics, each ``fn(config)``, and options of the strategy."""

    model_creator: Any
    loss_creator: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sync_options: Mapping[str, Any] = field(default_factory=dict)
    metric_creators: tuple[Callable[..., Any], ...] = ()
    """Called on the driver only."""

    def travels(self) -> dict[str, object]:
        return {"model_creator": self.model_creator, "loss_creator": self.loss_creator, "config": self.config}

    @property
    def kvstore(self) -> str:
        return str(self.sync_options.get("kvstore") or "dist_sync")

    def servers(self, workers: int) -> int:
        """Return the number of servers beside the workers; by default one, or none for a single worker."""
        count = self.sync_options.get("num_servers")
        return int(count) if count is not None else 0 if workers == 1 else 1

    def make_net(self) -> Net:
        """Create the model with its loss."""
        model = self.model_creator(dict(self.config))
        loss = None if self.loss_creator is None else self.loss_creator(dict(self.config))
        if isinstance(model, mx.gluon.Block):
            if loss is not None and not callable(loss):
                raise ArgumentError(
                    f"loss_creator= gave a {type(loss).__name__}; expected a gluon loss or a function "
                    "of (output, label)."
                )
            return GluonNet(model, loss, self.config.get("init"))
        if isinstance(model, mx.mod.Module | mx.sym.Symbol):
            if loss is not None:
                raise ArgumentError(
                    "loss_creator= is for Gluon models; a Symbol or Module brings its loss as its last layer, for "
                    "example SoftmaxOutput."
                )
            return SymbolNet(Graph.of(model), self.config.get("init"))
        raise ArgumentError(
            f"model_creator= gave a {type(model).__name__}; expected a gluon Block, a Module or a Symbol. Let the "
            "creator return it."
        )

    def known_net(self) -> Net | None:
        """Return the net as it will be on a rank; None if it cannot be created here."""
        try:
            return self.make_net()
        except Exception:
            return None

    def known_loss(self) -> Any:
        """Return the loss as it will be on a rank; None if there is none, or it cannot be created here."""
        try:
            return None if self.loss_creator is None else self.loss_creator(dict(self.config))
        except Exception:
            return None

    def check(self) -> None:
        form = "fn(config) that returns a gluon Block, a Module or a Symbol"
        check_function("model_creator", self.model_creator, form)
        if self.loss_creator is not None:
            check_function("loss_creator", self.loss_creator, "fn(config) that returns a gluon loss")
        if self.sync_options.get("kvstore") is not None:
            check_choice("kvstore", self.sync_options["kvstore"], STORES)
        self.make_optimizer(None)

    def make_optimizer(self, net: Net | None) -> Any:
        """Create the optimizer of the config; its gradients are those of the mean over the rows of a step."""
        choice = self.config.get("optimizer", "sgd")
        params = dict(check_mapping("optimizer_params", self.config.get("optimizer_params") or {}))
        if isinstance(choice, mx.optimizer.Optimizer):
            if params:
                raise ArgumentError("optimizer_params= goes with the name of an optimizer; this is one already.")
            optimizer = choice
        elif isinstance(choice, str):
            if choice.lower() not in mx.optimizer.Optimizer.opt_registry:
                known = ", ".join(sorted(mx.optimizer.Optimizer.opt_registry))
                raise ArgumentError(f"optimizer={choice!r} is not one of MXNet's. Known: {known}.")
            if net is not None:
                params = {**net.optimizer_params(), **params}
            try:
                optimizer = mx.optimizer.create(choice, **params)
            except TypeError as error:
                raise ArgumentError(f"optimizer_params={params}: {error}.") from None
        else:
            raise wrong("optimizer", choice, "MXNet's name of one or an mxnet.optimizer.Optimizer")
        if optimizer.rescale_grad != 1.0:
            raise ArgumentError(
                "optimizer_params= must not set rescale_grad: gradients are divided by the rows of the step already."
            )
        return optimizer

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the driver calls."""
        return {**self.__dict__, "metric_creators": ()}
