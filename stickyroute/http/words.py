"""Words for how an exchange, or one attempt of it, ended: they stand in metrics and in the access log.

And how long the head of a reply waits before it is known which of them it will be.
"""

from __future__ import annotations

from typing import Final

# How an exchange ended.
COMPLETE: Final = "complete"
CLIENT_LEFT: Final = "client_left"
CLIENT_STALLED: Final = "client_stalled"
UPSTREAM_DIED: Final = "upstream_died"
UPSTREAM_SILENT: Final = "upstream_silent"
HEADER_TIMEOUT: Final = "header_timeout"  # a failure of an attempt: no head, or only part of one, in time
UPSTREAM_ERROR: Final = "upstream_error"  # the engine ended its stream with an error event
UPSTREAM_DEAD: Final = "upstream_dead"  # likewise, and it takes no requests any more
UPSTREAM_ABORTED: Final = "upstream_aborted"  # the engine ended its answer before its time
REFUSED: Final = "refused"  # answered by the proxy itself

# A failure of an attempt: the head of a reply, and then the connection was lost before any of its body.
HEAD_ONLY: Final = "head_only"

HEAD_HELD_S = 10.0
"""The head of a stream is passed on after so long even if nothing follows it: clients, and whoever balances load
in front of us, have limits of their own for heads."""
