"""The errors stickyroute answers with: a flat list, each with an HTTP status and a machine-readable code.

Foreign exceptions are translated into one of these once, at the edge where they appear. A message is meant for
the client: it never holds a backend's address, a key or a traceback.
"""

from __future__ import annotations


class StickyrouteError(Exception):
    """An answerable failure.

    `status` is the HTTP status, `code` a stable machine-readable word, `type` the OpenAI error type,
    `param` the request field at fault, `retry_after_s` (seconds) becomes a Retry-After header.
    """

    status = 500
    code = "internal_error"
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code


class BadRequest(StickyrouteError):
    """The client sent something we cannot route; nothing was forwarded."""

    status = 400
    code = "bad_request"
    type = "invalid_request_error"


class Unauthorized(StickyrouteError):
    """The gateway key is missing or wrong."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class NotFound(StickyrouteError):
    """Unknown path or unknown model."""

    status = 404
    code = "not_found"
    type = "invalid_request_error"


class TooLarge(StickyrouteError):
    """The body is over `limits.body_bytes`; nothing was forwarded."""

    status = 413
    code = "request_too_large"
    type = "invalid_request_error"


class NoBackend(StickyrouteError):
    """No backend can take the request now; try again after `retry_after_s`."""

    status = 503
    code = "no_backend_available"
    type = "overloaded_error"


class UpstreamFailed(StickyrouteError):
    """A backend took the request and failed before it answered, and no further attempt was allowed."""

    status = 502
    code = "upstream_failed"
    type = "upstream_error"


class GatewayTimeout(StickyrouteError):
    """A backend did not answer within a configured limit."""

    status = 504
    code = "upstream_timeout"
    type = "timeout_error"


class ConfigError(StickyrouteError):
    """The configuration is wrong; the message lists every problem with its path in the file."""

    code = "invalid_config"
