"""Wrong values for the arguments of public calls, derived from their signatures.

Every parameter gets the values of `POOL` that its annotation excludes, and further ones from a table for ranges and
choices. An annotation or a parameter that is not known here fails the tests, so that no argument is forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest

from orca.errors import ArgumentError, DataError

POOL: dict[str, Any] = {
    "None": None,
    "text": "no",
    "empty text": "",
    "integer": 5,
    "float": 1.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "zero": 0,
    "huge": 2**200,
    "True": True,
    "empty list": [],
    "empty dict": {},
    "object": object(),
    "bytes": b"x",
    "type": type,
    "lambda": lambda a, b, c, d, e: None,
    "array": np.zeros(3),
}
"""Values of all kinds; a parameter excludes those that are right for it."""

NUMBERS = {"integer", "float", "huge"}
RIGHT: dict[str, set[str]] = {
    "bool": {"True"},
    "int": {"integer"},
    "float": NUMBERS,
    "None": {"None"},
    "str": {"text"},
    "dict": {"empty dict"},
    "Mapping": {"empty dict"},
    "Callable": {"type"},
    "tuple": set(),
    "Sequence": set(),
    "Engine": set(),
    "XShards": set(),
    "os.PathLike": set(),
    "pd.DataFrame": set(),
    "pa.Table": set(),
    "pyspark.sql.DataFrame": set(),
    "pyspark.RDD": set(),
    "ray.data.Dataset": set(),
    "Columns": {"None", "text", "integer", "zero", "negative", "huge"},
    "Names": {"text", "integer", "zero", "negative", "huge"},
    "Paths": {"text"},
    "Step": {"type"},
    "Any": set(),
}
"""The values of the pool that are right for an annotation, by the words of the annotation."""


@dataclass(frozen=True)
class Extra:
    """What a signature does not say of a parameter."""

    right: frozenset[str] = frozenset()
    """Further values of the pool that are right."""
    wrong: tuple[Any, ...] = ()
    """Further values that are wrong, such as those out of range or of no choice."""
    also: bool = False
    """Whether values that the annotation calls right are wrong: a text that is none of the choices."""


def extra(*wrong: Any, right: str = "", choices: bool = False) -> Extra:
    return Extra(frozenset(filter(None, right.split(", "))), wrong, choices)


SEED = extra(-1, 2**64, right="zero")
SHARED = {
    "metrics": extra([None], ["no"], {"mine": None}, [int], lambda a: 0.0, right="None, empty list, empty dict"),
    "seed": SEED,
    "model_dir": extra("s3://", right="text"),
    "resources_per_worker": extra(
        {"CPU": 0}, {"CPU": 1.5}, {"CPU": True}, {"GPU": -1}, {"GPU": 0.5}, {"GPU": "1"}, {"gpu": 1}, {5: 1}, {"": 1},
        {"npu": 0}, {"npu": 1.5}, {"npu": float("nan")}, {"npu": None}, {"memory": 1}, [("CPU", 1)],
    ),
    "use_gpu": extra("yes", 1),
}  # fmt: skip
"""Arguments of all constructors."""


@dataclass(frozen=True)
class Call:
    """A public call with right arguments."""

    name: str
    function: Callable[..., Any]
    """The function whose signature counts."""
    run: Callable[..., Any]
    """Calls it with these keywords in place of the right ones."""
    extras: Mapping[str, Extra] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    """Parameters whose every value is right."""

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters that need cases."""
        unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(self.function).parameters
        return {
            name: parameter
            for name, parameter in parameters.items()
            if name not in ("self", "cls", *self.skip) and parameter.kind not in unnamed
        }


@dataclass(frozen=True)
class Case:
    """One wrong value of one parameter."""

    call: Call
    parameter: str
    value: Any
    label: str

    def __str__(self) -> str:
        return f"{self.call.name}({self.parameter}={self.label})"


def words_of(annotation: str) -> list[str]:
    """Return the words of an annotation without what is in brackets: "dict[str, Any] | None" is dict and None."""
    words, depth, word = [], 0, ""
    for letter in annotation + "|":
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            words.append(word.strip())
            word = ""
        elif depth == 0 and letter != "]":
            word += letter
    return words


def cases_of(call: Call) -> list[Case]:
    """Return all cases of a call."""
    cases = []
    for name, parameter in call.parameters().items():
        more = call.extras.get(name, Extra())
        right = set(more.right)
        for word in words_of(str(parameter.annotation)):
            # With choices, every text is wrong that is none of them.
            right |= RIGHT[word] - ({"text"} if more.also else set())
        cases += [Case(call, name, value, label) for label, value in POOL.items() if label not in right]
        cases += [Case(call, name, value, repr(value)) for value in more.wrong]
    return cases


def arguments_of(calls: list[Call]) -> list[Any]:
    """Return all arguments with their cases, as parameters of a test."""
    return [
        pytest.param([case for case in cases_of(call) if case.parameter == name], id=f"{call.name}-{name}")
        for call in calls
        for name in call.parameters()
    ]


def mistakes(cases: list[Case]) -> list[str]:
    """Return what is wrong with the answers to these cases, and whether they have started a process.

    Each case has to raise an error of Orca's that names the argument.
    """
    before = {child.pid for child in psutil.Process().children()}
    answers = [f"{case}: {answer}" for case in cases if (answer := _mistake(case))]
    started = {child.pid for child in psutil.Process().children()} - before
    return answers + [f"started the process {pid}" for pid in started]


def _mistake(case: Case) -> str:
    try:
        case.call.run(**{case.parameter: case.value})
    except (ArgumentError, DataError) as error:
        text = str(error)
        if case.parameter not in text:
            return f"the error does not name {case.parameter}: {text}"
        return "the message is too long" if len(text) > 1500 else ""
    except Exception as error:
        return f"raises a {type(error).__name__}: {error}"
    return "accepted"


def count_of(calls: list[Call]) -> int:
    """Return the number of cases."""
    return sum(len(cases_of(call)) for call in calls)
