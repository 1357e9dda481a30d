"""The pages of the server: one to try a model, one with the documentation; all their files are part of the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from orca.serving.messages import HttpError, Reply, Request
from orca.serving.routing import Route

_KINDS = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


@cache
def _files() -> dict[str, bytes]:
    """Read all files once: a name from a request is only ever a key of this dict."""
    folder = files("orca.serving") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.rpartition(".")[2] in _KINDS}


def _file(name: str) -> Reply:
    body = _files().get(name)
    if body is None:
        raise HttpError(404, "There is no such file.")
    return Reply(body, _KINDS[name.rpartition(".")[2]], 200, _POLICY)


async def try_page(request: Request) -> Reply:
    """Return the page to try a model."""
    return _file("try.html")


async def docs_page(request: Request) -> Reply:
    """Return the page with the documentation."""
    return _file("docs.html")


async def static_file(request: Request) -> Reply:
    """Return a file of a page."""
    return _file(request.parameters["file"])


async def favicon(request: Request) -> Reply:
    """Return the icon."""
    return _file("icon.svg")


ROUTES = (
    Route("/", {"GET": try_page}, is_open=True, protocol="page"),
    Route("/docs", {"GET": docs_page}, is_open=True, protocol="page"),
    Route("/favicon.ico", {"GET": favicon}, is_open=True, protocol="page"),
    Route("/static/{file}", {"GET": static_file}, is_open=True, protocol="page"),
)
