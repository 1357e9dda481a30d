"""The scikit-learn contract of an estimator: parameters, cloning, tags and score; scikit-learn is not imported."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orca.errors import ArgumentError, suggest

if TYPE_CHECKING:
    from orca.backends.base import Backend

KEEPS_STATE = ("epochs", "batch_size", "metrics", "workers", "backend", "model_dir", "seed")
"""Parameters that can change without making another model of it."""


class SklearnApi(ABC):
    """Parameters by name, as given to the ``from_*`` method that made the estimator.

    ``config__lr`` stands for the entry "lr" of ``config``.
    """

    _maker: Callable[..., Any] | None = None
    _params: dict[str, Any]
    backend: Backend[Any]
    seed: int

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters; with `deep` the entries of ``config`` as well, as ``config__<name>``."""
        params = dict(self._params)
        if deep:
            params |= {f"config__{key}": value for key, value in (params.get("config") or {}).items()}
        return params

    def set_params(self, **params: Any) -> Any:
        """Change parameters. What was learned stays, unless it belongs to another model or optimizer."""
        if not params:
            return self
        changed = dict(self._params)
        for name, value in params.items():
            head, _, entry = name.partition("__")
            accepted = {**changed, **dict.fromkeys((*self.backend.framework.arguments, *self.backend.traits.options))}
            if head not in accepted or (entry and head != "config"):
                known = ", ".join(changed)
                raise ArgumentError(
                    f"set_params does not know {name!r}. Parameters: {known}." + suggest(head, accepted)
                )
            changed[head] = {**(changed.get("config") or {}), entry: value} if entry else value
        fresh = self._remake(changed)
        changes = {name.partition("__")[0] for name in params}
        kept = self._learned(with_optimizer=changes <= set(KEEPS_STATE)) if "model" not in changes else {}
        if "seed" not in changes:
            kept["seed"] = self.seed
        elif kept:
            kept["_position"] = None  # another seed has another order
        if "scheduler_creator" in changes or "scheduler_step" in changes:
            kept.pop("_scheduler", None)
        if not changes <= set(KEEPS_STATE) and kept.get("_state") and not fresh._fits(kept["_state"]):
            kept = {"seed": fresh.seed}  # another config made another model
        self.__dict__ = {**fresh.__dict__, **kept}
        return self

    @abstractmethod
    def _learned(self, with_optimizer: bool) -> dict[str, Any]:
        """What was learned, by attribute; without the optimizer's state where that belongs to another one."""

    def _remake(self, params: dict[str, Any]) -> Any:
        if self._maker is None:
            raise ArgumentError("This estimator was not made by a from_* method: its parameters cannot change.")
        return self._maker(**params)

    def __sklearn_clone__(self) -> Any:
        # In one piece: an optimizer object has to stay bound to its model.
        return self._remake(copy.deepcopy(self._params))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, multi_output=True),
            input_tags=InputTags(two_d_array=True, three_d_array=True),
            # A pretrained model predicts without a fit.
            requires_fit=False,
        )
