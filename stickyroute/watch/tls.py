"""TLS towards backends, for the requests of clients as for questions of our own. Opens no connection."""

from __future__ import annotations

import ssl

from stickyroute.errors import ConfigError
from stickyroute.fleet import BackendSpec

__all__ = ["backend_tls"]


def backend_tls(spec: BackendSpec) -> ssl.SSLContext:
    """The context of all backends that agree in `ca` and `tls_verify`. Raises ConfigError where the CA file is none."""
    try:
        context = ssl.create_default_context(cafile=spec.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"backend {spec.name}: its CA file cannot be used: {spec.ca}: {error}") from error
    if not spec.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
