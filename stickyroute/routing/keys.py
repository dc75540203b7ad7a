"""What a policy knows of a request."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NO_KEYS", "RequestKeys"]


class RequestKeys(NamedTuple):
    """A request's place on the ring. A named tuple: frozen, slotted, and cheaper to make than a dataclass.

    `affinity` is a 64-bit hash, None for a request that nothing ties to a backend; `source` is the configured
    source that gave it ("header:x-session-id", "prefix"), empty without one.
    """

    affinity: int | None
    source: str


NO_KEYS = RequestKeys(None, "")
