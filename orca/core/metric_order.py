"""Recognizes by the names of its parameters whether a metric function takes outputs or targets first."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from orca.core.arguments import check_function
from orca.errors import ArgumentError

# The first pattern that a name matches decides: "pred_label" is an output, "true_score" is a target.
_WORDS = (
    ("output", re.compile(r"y?(pred(s|icted|ictions?)?|outputs?|hat)")),
    ("target", re.compile(r"y?(true|truth|targets?|gt|actuals?|expected|observed|reference)")),
    ("target", re.compile(r"labels?")),
    ("output", re.compile(r"(out|inputs?|logits?|scores?|probs?|probas?|probabilit(y|ies))")),
)


def output_first(function: Callable[..., Any], argument: str = "metrics") -> bool:
    """Whether a metric function takes (output, target); without any sign in the names it takes (target, output).

    >>> output_first(lambda y_pred, y_true: 0.0), output_first(lambda target, output: 0.0), output_first(max)
    (True, False, False)

    Raises:
        ArgumentError: The function does not take two arrays, or both of its parameters have a name of the same role.
    """
    check_function(argument, function, "fn(target, output)", (2,))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional][:2]
    roles = [_role(name) for name in names]
    if len(roles) < 2 or roles == [None, None]:
        return False
    if roles[0] == roles[1]:
        raise ArgumentError(
            f"{argument}= holds a function of ({', '.join(names)}): both names mean the {roles[0]}. "
            "Name its parameters (target, output) or (output, target)."
        )
    return roles[0] == "output" or roles[1] == "target"


def _role(name: str) -> str | None:
    """Return what a parameter holds, "output" or "target"; None if its name does not say."""
    words = name.lower().split("_")
    return next((role for role, pattern in _WORDS if any(map(pattern.fullmatch, words))), None)
