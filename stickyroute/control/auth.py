"""Who may do what on the admin port, and the line in the log for each change.

Reading is open to whoever can reach the port. What changes something, and what shows prompts, needs
`Authorization: Bearer <admin_token>`; with no token set it is free on loopback and refused elsewhere. On loopback a
person's browser can reach the port too, so there the pages of other sites are kept out: by the Host header, since a
name that was made to point at 127.0.0.1 (DNS rebinding) shows in it, and for changes by Origin and Sec-Fetch-Site.
A token is compared in constant time and never written anywhere.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import web

from stickyroute.clock import monotonic
from stickyroute.control.answers import Handler
from stickyroute.errors import Unauthorized
from stickyroute.settings import Settings

__all__ = ["GUARD", "Guard", "audit", "demand"]

log = logging.getLogger(__name__)

# Probes and scrapers may come by any name; they learn nothing that a page elsewhere could use.
_ANY_HOST = frozenset({"/healthz", "/readyz", "/metrics"})
_READS = frozenset({"GET", "HEAD"})
# What a form on any page can send without asking first.
_FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
_REFUSED_EVERY_S = 1.0


class Guard:
    """The rules over the settings in force. `middleware` guards every route by its method; a handler that shows
    prompts to a GET calls `demand` itself."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._told_s = float("-inf")
        self._untold = 0

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in _READS:
            self.demand(request)
        elif request.path not in _ANY_HOST:
            self._check_host(request)
        return await handler(request)

    def demand(self, request: web.Request) -> None:
        """Raise Unauthorized, as a 401 or a 403, unless the request may change things here."""
        try:
            self._demand(request)
        except Unauthorized as refused:
            self._tell(request, refused)
            raise

    def has_token(self, request: web.Request) -> bool:
        """Whether a token is set and the request carries it."""
        token = self._settings().admin_token
        given = request.headers.get("Authorization", "")
        scheme, _, credentials = given.partition(" ")
        if token is None or scheme.lower() != "bearer":
            return False
        expected = token.get_secret_value().encode()
        return hmac.compare_digest(credentials.strip().encode("utf-8", "surrogateescape"), expected)

    @property
    def token_needed(self) -> bool:
        """Whether changes need the token; also where none is set, so that there can be no change at all."""
        return self._settings().admin_token is not None or not self._on_loopback

    @property
    def token_set(self) -> bool:
        return self._settings().admin_token is not None

    @property
    def _on_loopback(self) -> bool:
        return _is_loopback(self._settings().admin_address.host)

    def _demand(self, request: web.Request) -> None:
        if self.has_token(request):
            return
        if self.token_set:
            if "Authorization" in request.headers:
                raise Unauthorized("This is not the admin token.", code="wrong_admin_token")
            raise Unauthorized(
                "This needs the admin token: Authorization: Bearer <admin_token>.", code="no_admin_token"
            )
        if not self._on_loopback:
            raise Unauthorized(
                "admin_listen is not on loopback and no admin_token is set, so nothing can be changed here. "
                "Set admin_token (STICKYROUTE_ADMIN_TOKEN) and send it as Authorization: Bearer <admin_token>.",
                status=403,
                code="admin_token_not_set",
            )
        self._check_host(request)
        self._check_origin(request)

    def _check_host(self, request: web.Request) -> None:
        """On loopback the port is called by an address or as localhost. Any other name is somebody else's."""
        if self._on_loopback and not _is_own_name(request.host) and not self.has_token(request):
            raise Unauthorized(
                "The admin port listens on loopback and answers to localhost and to addresses only, so that no "
                "web page can reach it under a name of its own. Call it so, or send the admin token.",
                status=403,
                code="foreign_host",
            )

    def _check_origin(self, request: web.Request) -> None:
        """A browser says which page a request comes from. What isn't a browser says nothing, and is welcome."""
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        if origin is None and site is None:
            return
        foreign = origin is not None and origin.partition("://")[2].lower() != request.host.lower()
        if foreign or site not in (None, "same-origin", "none"):
            raise Unauthorized(
                "A page of another site may not change anything here.", status=403, code="foreign_origin"
            )
        if request.body_exists and request.content_type in _FORM_TYPES:
            raise Unauthorized("From a browser, send application/json.", status=403, code="form_not_allowed")

    def _tell(self, request: web.Request, refused: Unauthorized) -> None:
        """One line for a refusal, at most one a second however many there are."""
        now_s = monotonic()
        if now_s - self._told_s < _REFUSED_EVERY_S:
            self._untold += 1
            return
        more = f", and {self._untold} more since the last line" if self._untold else ""
        self._told_s, self._untold = now_s, 0
        log.warning("refused: %s from %s (%s)%s", _asked(request), request.remote, refused.code, more)


GUARD = web.AppKey("guard", Guard)


def demand(request: web.Request) -> None:
    """Raise Unauthorized unless the request may change things and see prompts."""
    request.app[GUARD].demand(request)


def audit(request: web.Request, what: str) -> None:
    """The line in the log for one change: `what` was done, by whom. `what` holds no secret and no client's text."""
    how = "with the admin token" if request.app[GUARD].has_token(request) else "on loopback, no token set"
    log.info("audit: %s, by %s, %s", what, request.remote, how)


def _asked(request: web.Request) -> str:
    """The route, not the path, which is whatever somebody sent."""
    resource = request.match_info.route.resource
    return f"{request.method} {resource.canonical if resource is not None else '(unknown path)'}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_own_name(authority: str) -> bool:
    """Whether a Host header is empty, localhost or an address: what no other site can be called."""
    if authority.startswith("["):
        host = authority[1:].partition("]")[0]
    else:
        host = authority.partition(":")[0].lower().rstrip(".")
    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
