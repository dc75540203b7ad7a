"""The dashboard itself: one page at / and the few files it is made of, read once from the package.

Owns what is served and under which rules. The content security policy lets the page load and call nothing but this
port, run no script that is not one of these files, and be framed by nobody.
"""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath

from aiohttp import web
from xxhash import xxh3_64_hexdigest

from stickyroute.control.deps import Deps
from stickyroute.errors import NotFound

__all__ = ["add_routes"]

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for each time, answered by 304 until the process is another version
}
_PAGE = "index.html"


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET / and GET /static/{name}."""
    folder = resources.files("stickyroute.control") / "static"
    files = {file.name: _File(file.name, file.read_bytes()) for file in folder.iterdir()}

    async def page(request: web.Request) -> web.Response:
        return files[_PAGE].answer(request)

    async def part(request: web.Request) -> web.Response:
        file = files.get(request.match_info["name"])
        if file is None:
            raise NotFound("The dashboard has no such file.")
        return file.answer(request)

    app.router.add_get("/", page)
    app.router.add_get("/static/{name}", part)


class _File:
    def __init__(self, name: str, body: bytes) -> None:
        self._type = _TYPES[PurePath(name).suffix]
        self._body = body
        self._tag = xxh3_64_hexdigest(body)

    def answer(self, request: web.Request) -> web.Response:
        headers = {**_HEADERS, "ETag": f'"{self._tag}"'}
        if any(tag.value == self._tag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=self._body, content_type=self._type, charset="utf-8", headers=headers)
