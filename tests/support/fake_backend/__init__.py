"""A backend on a raw socket that does exactly what a test tells it, and remembers everything it saw.

`server` listens and dies on command, `call` is one request as it arrived, `connection` the wire between, `scripts` are
ways to answer. Knows nothing of stickyroute. A *canary* is a listener that must never be contacted.
"""

from tests.support.fake_backend.call import Call, Fields, PeerGone, Script, reset
from tests.support.fake_backend.scripts import (
    DONE,
    EVENT,
    drop,
    echo,
    events,
    finish,
    held,
    raw,
    reply,
    silent,
    stream,
)
from tests.support.fake_backend.server import PROBES, Canary, FakeBackend, fakes

__all__ = [
    "DONE",
    "EVENT",
    "PROBES",
    "Call",
    "Canary",
    "FakeBackend",
    "Fields",
    "PeerGone",
    "Script",
    "drop",
    "echo",
    "events",
    "fakes",
    "finish",
    "held",
    "raw",
    "reply",
    "reset",
    "silent",
    "stream",
]
