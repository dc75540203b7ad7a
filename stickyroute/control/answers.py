"""The form of every answer on the admin port: JSON with a line end, and errors that say what to do.

Owns the form alone. A handler raises a StickyrouteError for whatever it refuses; the middleware here answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from stickyroute.errors import StickyrouteError

__all__ = ["Handler", "errors_in_json", "json_answer"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_answer(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`answer` as JSON; raises TypeError for what has no such form."""
    return web.Response(
        body=orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE),
        status=status,
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})},
        content_type="application/json",
    )


@web.middleware
async def errors_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever is refused, unknown routes and methods included, is told in JSON."""
    try:
        return await handler(request)
    except StickyrouteError as error:
        headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:.0f}"}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return _problem(error.status, error.code, error.message, headers)
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted(error.allowed_methods))
        return _problem(405, "method_not_allowed", f"This path answers to {allow} only.", {"Allow": allow})
    except web.HTTPNotFound:
        return _problem(404, "not_found", f"There is no such page here. Try {_paths(request.app)}.")
    except web.HTTPRequestEntityTooLarge:
        return _problem(413, "request_too_large", "The body is over limits.body_bytes.")
    except ConnectionResetError:  # who sent half a body is gone: nobody reads this, and it is nothing to log
        return _problem(400, "incomplete_body", "The body ended before its length.")


def _problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return json_answer({"error": {"code": code, "message": message}}, status, headers)


def _paths(app: web.Application) -> str:
    """The pages that a person may want to see."""
    pages = sorted(
        {
            resource.canonical
            for resource in app.router.resources()
            if "{" not in resource.canonical and any(route.method == "GET" for route in resource)
        }
    )
    return ", ".join(pages)
