"""Virtual datasets: functions that return the data, stored with their source, pickled and signed."""

from __future__ import annotations

import base64
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from orca.core.arguments import check_function
from orca.core.pickling import pickled
from orca.errors import DataError, UntrustedError
from orca.store import signing
from orca.store.data.parts import PartWriter

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_orca_virtual"


def virtualobj(function: F) -> F:
    """Mark a function that returns data, so that ``datasets.put(function, name)`` stores it as a virtual dataset.

    ``datasets.get("name{a=b}")`` calls it with ``a="b"``, and with ``method="get"``, ``meta`` and ``store`` if it has
    such parameters.

    >>> @virtualobj
    ... def numbers(count="3", **options):
    ...     return list(range(int(count)))
    >>> is_virtual(numbers)
    True
    """
    check_function("function", function, "fn(**options)", (0,))
    setattr(function, _MARK, True)
    return function


def is_virtual(value: Any) -> bool:
    """Return whether a function is marked as a virtual dataset."""
    return callable(value) and getattr(value, _MARK, False) is True


def write_virtual(writer: PartWriter, function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Write a function with its source, signed by this user; return its entry."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        source = ""
    code = base64.b64encode(pickled(function, "data")).decode()
    content = {"name": name, "source": source, "code": code}
    with writer.part("0", "json", 0) as part:
        part.path.write_text(json.dumps({**content, "hmac": signing.sign(_signed(content))}, indent=1))
    return {**part.entry, "source": source}


def _signed(content: Mapping[str, Any]) -> bytes:
    return json.dumps([content[key] for key in ("name", "source", "code")]).encode()


def open_virtual(content: bytes, name: str, trusted: bool) -> Callable[..., Any]:
    """Return the function of a virtual dataset, if this user has signed it or trusts it."""
    import cloudpickle

    try:
        stored = json.loads(content)
        signed_content, signature = _signed(stored), str(stored["hmac"])
        code = base64.b64decode(stored["code"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"The store is damaged: the function of the dataset {name!r} cannot be read.") from error
    if stored["name"] != name and not trusted:
        raise UntrustedError(f"name={name!r}: its function was signed for the dataset {stored['name']!r}.")
    signed = trusted or signing.is_signed(signed_content, signature)
    if not signed:
        raise UntrustedError(
            f"name={name!r} is a virtual dataset that your key ({signing.key_path()}) has not signed: its function "
            "does not run. Read its source with metadata(), and pass trusted=True if you trust it."
        )
    function: Callable[..., Any] = cloudpickle.loads(code)
    return function


def call(function: Callable[..., Any], options: Mapping[str, Any], extras: Mapping[str, Any]) -> Any:
    """Call the function with the options of the user, and with those of `extras` that it has parameters for."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in options if name not in parameters and not takes_any]
    if unknown:
        raise DataError(f"{unknown[0]}=: the virtual dataset has the parameters {', '.join(parameters) or 'none'}.")
    accepted = {name: value for name, value in extras.items() if name in parameters or takes_any}
    return function(**{**accepted, **options})
