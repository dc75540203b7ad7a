"""What a policy answers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Decision"]


class Decision(NamedTuple):
    """The backend in `slot` takes the request. A named tuple: frozen, slotted, and cheaper than a dataclass.

    `reason` is one of: home, spill (home is at its bound or would cost more), warm (not its home, but where
    its prefix is), failover (home is unavailable or was tried), no_key, least_tokens, least_requests,
    power_of_two, round_robin, random; pinned is the proxy's own (the backend keeps what the request comes back
    to).
    """

    slot: int
    reason: str
