"""Routes: which function answers a path and a verb, and what the OpenAPI document says about it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orca.serving.messages import HttpError, Reply, Request

Answer = Callable[[Request], Awaitable[Reply]]

_PARTS = {
    "model": "(?P<model>.+?)",
    "version": "(?P<version>[0-9]{1,18})",
    "label": "(?P<label>[^/:]+)",
    "task": "(?P<task>[^/]+)",
    "file": "(?P<file>[^/]+)",
}
_REMEMBERED = 4096
"""Paths whose route is remembered; a client with random paths cannot fill the memory."""


@dataclass(frozen=True)
class Route:
    """One path with its verbs.

    The path is written as in OpenAPI: ``/v2/models/{model}/infer``. The name of a model may contain slashes.
    """

    path: str
    answers: Mapping[str, Answer]
    """Functions by verb."""
    operations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The OpenAPI operations by verb; none hides the route from the document."""
    is_open: bool = False
    """Whether the route works without a token."""
    protocol: str = "server"
    """The name in the metrics."""

    def pattern(self) -> re.Pattern[str]:
        """Return the expression that matches the path."""
        pieces = re.split(r"\{(\w+)\}", self.path)
        text = "".join(_PARTS[piece] if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))
        return re.compile(text, re.DOTALL)


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._patterns = [(route.pattern(), route) for route in self.routes]
        self._remembered: dict[str, tuple[Route, dict[str, str]]] = {}

    def find(self, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a path and its parameters."""
        entry = self._remembered.get(path)
        if entry is None:
            entry = self._search(path)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[path] = entry
        return entry

    def _search(self, path: str) -> tuple[Route, dict[str, str]]:
        for pattern, route in self._patterns if len(path) <= 1000 else ():
            if match := pattern.fullmatch(path):
                return route, match.groupdict()
        raise HttpError(404, "The server has no such path; /docs lists all of them.")

    @staticmethod
    def answer(route: Route, method: str) -> Answer:
        """Return the function for a verb."""
        answer = route.answers.get("GET" if method == "HEAD" else method)
        if answer is None:
            verbs = [*route.answers, *(["HEAD"] if "GET" in route.answers else [])]
            allowed = ", ".join(sorted(verbs))
            raise HttpError(405, f"This path takes {allowed}.", [(b"allow", allowed.encode())])
        return answer
