"""/config on the admin port: the configuration in force, and another in its place.

Owns the form of the questions and answers. How a change is made is the composition root's matter, which hands it
in; no secret leaves here.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import yaml
from aiohttp import web

from stickyroute.control.answers import json_answer
from stickyroute.control.auth import audit
from stickyroute.control.deps import Deps
from stickyroute.errors import BadRequest, ConfigError

__all__ = ["Configured", "add_routes"]


class Configured(Protocol):
    """What can be seen and changed of the configuration: `live.Live`, which stands above this floor."""

    def effective(self) -> str:
        """The settings in force as YAML, secrets masked."""

    def state(self) -> dict[str, Any]:
        """Generation, source, time and last error."""

    def discovery_state(self) -> list[dict[str, Any]]:
        """How each source of discovery goes."""

    async def put(self, text: bytes, source: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Go by these settings, or tell what that would do. Raises ConfigError."""


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET and PUT /config."""
    if deps.config is None:
        return
    views = _Views(deps.config)
    app.router.add_get("/config", views.show)
    app.router.add_put("/config", views.change)


class _Views:
    def __init__(self, config: Configured) -> None:
        self._config = config

    async def show(self, request: web.Request) -> web.Response:
        """The settings in force: YAML as a file has it, JSON for who asks for that (`?format=json` or Accept)."""
        text = self._config.effective()
        if request.query.get("format") == "json" or "json" in request.headers.get("Accept", ""):
            return json_answer(yaml.safe_load(text))
        generation = self._config.state()["generation"]
        return web.Response(
            text=f"# Generation {generation}. Secrets are masked; a mask that is sent back stays what it was.\n{text}",
            content_type="application/yaml",
            headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
        )

    async def change(self, request: web.Request) -> web.Response:
        """Go by the configuration in the body; `?dry_run=1` only tells what that would do."""
        dry_run = request.query.get("dry_run", "").lower() in ("1", "true", "yes")
        text = await request.read()
        if not text.strip():
            raise BadRequest("Send a configuration in the body, in YAML or JSON.", code="no_configuration")
        try:
            # JSON may be indented by tabs, which YAML does not know.
            if text.lstrip()[:1] == b"{":
                text = json.dumps(json.loads(text)).encode()
        except (ValueError, RecursionError):
            pass  # flow style in YAML begins so too; whose mistake it is shows there
        try:
            answer = await self._config.put(text, f"PUT /config from {request.remote}", dry_run=dry_run)
        except ConfigError as error:
            if not dry_run:
                audit(request, "configuration refused")
            raise BadRequest(error.message, code="bad_configuration") from None
        if not dry_run:
            audit(request, f"configuration {answer['generation']}: {answer['summary']}")
        return json_answer(answer)
