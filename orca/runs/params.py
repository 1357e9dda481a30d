"""The scikit-learn contract of an estimator: its parameters by name. scikit-learn itself is not needed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from orca.backends.base import Backend
from orca.core.arguments import check_flag
from orca.errors import ArgumentError, suggest
from orca.runs.values import Learned, Setup

E = TypeVar("E")
KEEPS_STATE = frozenset({"epochs", "batch_size", "metrics", "workers", "backend", "model_dir", "seed"}) | frozenset(
    {"resources_per_worker", "use_gpu"}
)
"""Parameters that can change without changing the model or its optimizer."""


@dataclass(frozen=True)
class Recipe:
    """The constructor that created an estimator, and its arguments."""

    constructor: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)

    def create(self, cls: type[E]) -> E:
        """Create an estimator of this recipe."""
        estimator: E = getattr(cls, self.constructor)(**self.params)
        return estimator

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        # Parameters are copied in one piece: an optimizer object has to stay bound to its model. Those of a TensorFlow
        # graph cannot be copied.
        return self if self.constructor == "from_graph" else replace(self, params=copy.deepcopy(self.params, memo))

    def __getstate__(self) -> dict[str, Any]:
        # An estimator of a TensorFlow graph travels without the graph's tensors; it can then no longer be cloned.
        return {"constructor": "", "params": {}} if self.constructor == "from_graph" else self.__dict__

    def all_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with `deep` also the entries of ``config``, as ``config__<name>``."""
        params = dict(self.params)
        if check_flag("deep", deep):
            params |= {f"config__{key}": value for key, value in (params.get("config") or {}).items()}
        return params

    def changed(self, changes: Mapping[str, Any], backend: Backend[Any]) -> Recipe:
        """Return the recipe with other parameters; ``config__lr`` is the entry "lr" of ``config``."""
        if not self.constructor:
            raise ArgumentError("This estimator was not created by a from_* method: its parameters cannot change.")
        params = dict(self.params)
        accepted = {*params, *backend.framework.arguments, *backend.traits.options}
        for name, value in changes.items():
            head, _, entry = name.partition("__")
            if head not in accepted or (entry and head != "config"):
                raise ArgumentError(
                    f"set_params does not know {name!r}. Parameters: {', '.join(params)}." + suggest(head, accepted)
                )
            params[head] = {**(params.get("config") or {}), entry: value} if entry else value
        return replace(self, params=params)


def after_change(names: set[str], old: Setup, learned: Learned, new: Setup, fresh: Learned) -> tuple[Setup, Learned]:
    """Return setup and learned state after these parameters have changed; what still fits the new model stays."""
    if "model" in names:
        return new, fresh if "seed" in names else replace(fresh, seed=learned.seed)
    # A new identity: ranks may hold a replica of the old model.
    kept = replace(learned, owner=fresh.owner, version=0 if learned.state is None else 1)
    if "seed" in names:
        kept = replace(kept, seed=fresh.seed, position=None)  # another seed means another order of rows
    if not names <= KEEPS_STATE and learned.state is not None:
        kept = replace(kept, state={"model": learned.state["model"]}, position=None)
        if not _fits(new, kept):
            return new, fresh
    if not new.backend.framework.callback_arguments & names:
        new = replace(new, callbacks=old.callbacks)
    return new, kept


def _fits(setup: Setup, learned: Learned) -> bool:
    """Whether learned weights fit the model."""
    try:
        setup.backend.framework.model(setup.spec, learned.state, learned.seed)
    except Exception:
        return False
    return True


def tags() -> Any:
    """Return scikit-learn's tags of an estimator."""
    from sklearn.utils import InputTags, Tags, TargetTags

    return Tags(
        estimator_type=None,
        target_tags=TargetTags(required=True, multi_output=True),
        input_tags=InputTags(two_d_array=True, three_d_array=True),
        # An inference-only model predicts without a fit.
        requires_fit=False,
    )
