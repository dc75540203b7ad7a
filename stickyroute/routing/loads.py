"""What is known of every backend at this moment, as policies read it: flat lists by slot, and a few means.

Owns the names and units. The fleet makes one and is the only one to write it. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from stickyroute.defaults import RECENT_KEYS
from stickyroute.routing.index import Index
from stickyroute.routing.kappa import Kappa
from stickyroute.routing.recent import Recent

__all__ = ["Loads"]


class Loads:
    """By slot: requests `in_flight` and those of them still `queued` (without a first token); prompt tokens of
    what is in flight (`in_flight_tokens`); uncached prompt tokens before their first token (`backlog_tokens`);
    seconds per uncached token (`token_s`); the cache's size (`capacity_tokens`); the part of a believed hit
    that comes true (`trust`, 0 to 1); the share of the cache, 0 to 1, that what is in flight takes (`kv_used`), and
    that a token more takes (`kv_per_token`), both 0 while unknown, which is never "full"; `room`, from above 0 to 1,
    the part of its share of load that it should have now (1 while nothing speaks against it).

    The lists grow in place and are the same objects for good (lists, not arrays, which would make a new number for each
    look). `tight` says that some `room` is below 1, `recent` where keys were sent.

    For the whole fleet: `arrivals_s`, requests a second for one backend, and `busy`, the part of the time, 0 to
    1, that it spends on prompts, both over the last seconds; `step_s`, what a first token takes apart from its
    tokens; `decode_s`, what one more running sequence counts for an answer; `answer_tokens` and `stay_s`, mean
    length of an answer and time in flight; `stall`, what a second in which a running sequence stands still counts, in
    seconds of time to first token; `unseen`, from 0 to 1, requests on the engines that are not ours, for one of ours.
    """

    __slots__ = (
        "answer_tokens", "arrivals_s", "backlog_tokens", "busy", "capacity_tokens", "decode_s", "in_flight",
        "in_flight_tokens", "index", "kappa", "kv_per_token", "kv_used", "queued", "recent", "room", "stall", "stay_s",
        "step_s", "tight", "token_s", "trust", "unseen",
    )  # fmt: skip

    def __init__(
        self,
        in_flight: list[int],
        capacity_tokens: Sequence[float],
        token_s: float,
        index: Index,
        kappa: Kappa,
    ) -> None:
        count = len(in_flight)
        self.in_flight = in_flight
        self.queued = [0] * count
        self.in_flight_tokens = [0.0] * count
        self.backlog_tokens = [0.0] * count
        self.token_s = [token_s] * count
        self.capacity_tokens = list(map(float, capacity_tokens))
        self.trust = [1.0] * count
        self.kv_used = [0.0] * count
        self.kv_per_token = [0.0] * count
        self.room = [1.0] * count
        self.tight = False
        self.recent = Recent(RECENT_KEYS)
        self.recent.grow(count)
        self.index = index
        self.kappa = kappa
        self.arrivals_s = 0.0
        self.busy = 0.0
        self.step_s = 0.0
        self.decode_s = 0.0
        self.answer_tokens = 0.0
        self.stay_s = 0.0
        self.stall = 0.0
        self.unseen = 0.0
