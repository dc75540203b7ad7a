"""The accounts of what backends have been given and how fast they work it off.

Owns every change of `Loads`: at dispatch, at the first token, when usage is told, at the end, and as time
passes. A prompt's uncached tokens are backlog from dispatch to its first token; engines take prompts in order,
so the one at the head is worked off at the learned rate meanwhile, and a head whose reply does not stream (it
never shows a first token) leaves the backlog when it should be done.

What is learned: seconds per uncached token and per first token, from TTFT against the backlog a request found;
what a running sequence adds to a step, from pauses between tokens against how many ran; bytes per token, and
how much of a believed hit is one, from usage. Knows no sockets and no policy; time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from stickyroute.defaults import BYTES_PER_TOKEN
from stickyroute.fleet.learn import Line, Mean, toward
from stickyroute.fleet.lease import Lease
from stickyroute.fleet.tuning import Tuning
from stickyroute.openai.usage import Usage
from stickyroute.routing.cost import KV_HIGH_WATER
from stickyroute.routing.index import Index
from stickyroute.routing.kappa import Kappa
from stickyroute.routing.loads import Loads

__all__ = ["Books"]

_STEP_S = 0.02  # one step of an engine, until first tokens tell
_DECODE_STEP_S = 1e-4  # what a running sequence adds to a step, until pauses between tokens tell
_ANSWER_TOKENS = 200.0
_RATE_UNIT_TOKENS = 2000.0
_DOUBT = 3.0  # standard errors within which a backend is as fast as the others; see docs/adr/0009
_COMMON_DECAY = 0.998  # of the line through everybody's points: about the last 500
_REACH = 2.0  # capacities for which a block is looked for where it was; see docs/adr/0009
_DECODE_UNIT = 8.0  # sequences
_MANY = 64  # backends: to look at all for each request would be most of what it costs
_SETTLE_S = 0.002
_MEMORY_S = 20.0  # how far back arrivals are counted
_BEGUN_S = 1.0  # before the first request, as far as rates are concerned; see docs/adr/0010
_ROUNDS = 4  # of samples of all backends: how far back requests in flight are compared
_UNSEEN_LEAST = 0.25  # a request that ends while its sample is on the way is no other router's
_UNSEEN_PRIOR = 4.0  # requests: a sample or two of a quiet fleet tell nothing
_HEAD_LIMIT = 0.9  # of the head's tokens may count as done while its first token is not there
_DECODE_SHARE = 0.1  # of an answer's time, as a part of time to first token; see docs/adr/0006
_STALL_LIMIT = 0.5  # of a pause between tokens, as a part of time to first token; see docs/adr/0009
_TOKEN_SHARE_LIMIT = 2.0  # tokens in the cache for one of a prompt in flight
_TOTALS = 16_384  # conversations whose length in tokens is remembered, some 250 bytes each
_POINTS = 32
"""From so many requests a second of a backend rates, trust and bytes per token are learned: more would make nothing
better, and cost as much as the choice of a backend does."""
_MIN_RUN_TOKENS = 16  # an answer of fewer tokens says nothing of the pauses between them


class Books:
    """Keeps `loads` of `count` backends."""

    def __init__(self, count: int, tuning: Tuning) -> None:
        self._tuning = tuning
        self.present = max(1, count)
        """How many slots have a backend, at least 1."""
        token_s = 1.0 / tuning.prefill_tokens_s
        capacity: Sequence[float] = [tuning.kv_tokens] * count
        self.loads = Loads(
            [0] * count,
            capacity,
            token_s,
            Index(tuning.index_entries, capacity, _REACH),
            Kappa(tuning.kappa),
        )
        self._waiting: list[dict[Lease, None]] = [{} for _ in range(count)]  # in the order of dispatch
        self._since_s = [0.0] * count  # when the head of the queue came to be the head
        self._owed = [0.0] * count  # tokens of all that wait
        self._rate = [self._new_rate() for _ in range(count)]
        self._common = Line(_STEP_S, token_s, _RATE_UNIT_TOKENS, decay=_COMMON_DECAY)
        self._decode = Line(2 * _STEP_S, _DECODE_STEP_S, _DECODE_UNIT)
        self._answer = Mean(_ANSWER_TOKENS)
        self._counted_s = 0.0
        self._arrived = self._worked = 0.0  # requests, and seconds of their prompts, as they fade
        self._before = exp(-_BEGUN_S / _MEMORY_S)  # the part of what is remembered before we began
        self._there = self._ours = 0.0  # requests in flight by the engines' samples and by our count
        self._settled_s = -1.0
        self._stay = Mean(0.0, 0.02)
        self._first = Mean(0.0, 0.02)
        self._second_s = [0.0] * count  # since when points are counted, and how many there are since
        self._points = [0] * count
        self._block = [1] * count  # tokens in a block of the engine's, until its metrics tell
        self._told: dict[tuple[int, ...], int] = {}  # by pool: prompts whose length in tokens was told
        # By a conversation's last block: its prompt's tokens, its answer's, and the prompt's bytes.
        self._totals: dict[int, tuple[int, int, int]] = {}
        self._believed = [0.0] * count  # tokens that were held to be hits, and those that were
        self._proved = [0.0] * count
        self.loads.step_s = _STEP_S
        self._update_decode()

    # Whose accounts.

    def grow(self, count: int) -> None:
        """There are `count` slots now; the new ones are blank."""
        loads = self.loads
        more = count - len(self._waiting)
        if more <= 0:
            return
        loads.index.grow(count, self._tuning.kv_tokens)
        loads.recent.grow(count)
        for counts in (loads.in_flight, loads.queued):
            counts.extend([0] * more)
        for values, value in self._blank():
            values.extend([value] * more)
        self._waiting += [{} for _ in range(more)]
        for sums in (self._since_s, self._owed, self._believed, self._proved, self._second_s):
            sums += [0.0] * more
        self._rate += [self._new_rate() for _ in range(more)]
        self._points += [0] * more
        self._block += [1] * more

    def reset(self, slot: int) -> None:
        """Somebody else is in the slot, of whom nothing is known. Nothing may be in flight there."""
        for values, value in self._blank():
            values[slot] = value
        self.record_restart(slot)
        self.loads.index.set_capacity(slot, self._tuning.kv_tokens)
        self._owed[slot] = 0.0
        self._rate[slot] = self._new_rate()
        self._block[slot] = 1

    def _blank(self) -> tuple[tuple[list[float], float], ...]:
        """Each list of figures, and what stands there for one of whom nothing is known."""
        loads, tuning = self.loads, self._tuning
        return (
            (loads.in_flight_tokens, 0.0),
            (loads.backlog_tokens, 0.0),
            (loads.token_s, self._common.slope),
            (loads.capacity_tokens, tuning.kv_tokens),
            (loads.trust, 1.0),
            (loads.kv_used, 0.0),
            (loads.kv_per_token, 0.0),
            (loads.room, 1.0),
        )

    def _new_rate(self) -> Line:
        return Line(_STEP_S, 1.0 / self._tuning.prefill_tokens_s, _RATE_UNIT_TOKENS)

    # A request's way.

    def open(self, lease: Lease, now_s: float) -> None:
        """A request is dispatched."""
        loads, slot, keys = self.loads, lease.slot, lease.keys
        waiting = self._waiting[slot]
        if not waiting:
            self._since_s[slot] = now_s
        size = keys.prompt_bytes
        if size:
            view = lease.view
            if keys.prompt_tokens is not None:
                tokens = float(keys.prompt_tokens)
            else:
                tokens = size / (view.bytes_per_token if view is not None else BYTES_PER_TOKEN)
            lease.tokens = tokens
            lease.missing_tokens = tokens
            chain, ends = keys.chain, keys.ends
            if chain:
                blocks, tail = loads.index.insert(slot, chain, ends, tokens / size, keys.affinity or 0)
                if blocks:
                    lease.held_blocks = blocks
                    held = tokens * ends[blocks - 1] / size + tail
                    lease.held_tokens = held = held if held < tokens else tokens
                    missing = tokens - loads.trust[slot] * held
                    lease.missing_tokens = missing if missing > 1.0 else 1.0
                    # Where this conversation stopped there, its length is known to the token.
                    known = self._totals.get(chain[blocks - 1]) if tail else None
                    if known is None:
                        # What is shared ends somewhere in the first block that differs: in its middle, in the mean.
                        upper = ends[blocks] if blocks < len(chain) else size
                        more = 0.0 if tail else tokens * (upper - ends[blocks - 1]) / (2 * size)
                        cached = loads.trust[slot] * (held + more)
                    else:  # the answer too, if the prompt goes on behind it
                        cached = float(known[0] + (known[1] if size > known[2] else 0))
                    lease.cached_tokens = cached - cached % self._block[slot]  # only whole blocks are
        loads.in_flight[slot] += 1
        loads.queued[slot] += 1
        loads.in_flight_tokens[slot] += lease.tokens
        loads.kv_used[slot] = used = loads.kv_per_token[slot] * loads.in_flight_tokens[slot]
        if now_s >= self._second_s[slot] + 1.0:
            self._second_s[slot] = now_s
            self._points[slot] = 0
        self._points[slot] += 1
        lease.teaches = self._points[slot] <= _POINTS
        lease.learns = lease.teaches and lease.streams and used < KV_HIGH_WATER
        lease.ahead_tokens = ahead = loads.backlog_tokens[slot]
        lease.expected_s = loads.step_s + (ahead + lease.missing_tokens) * loads.token_s[slot]
        waiting[lease] = None
        self._count_arrival(now_s, lease.missing_tokens * loads.token_s[slot])
        self._owed[slot] += lease.missing_tokens
        loads.backlog_tokens[slot] += lease.missing_tokens

    def _count_arrival(self, now_s: float, work_s: float) -> None:
        """Let what was counted fade, and count one request more. The means are over the time since the first one."""
        loads = self.loads
        past_s = now_s - self._counted_s
        kept = exp(-past_s / _MEMORY_S) if past_s > 0.0 and self._arrived else 1.0
        self._counted_s = now_s
        self._arrived = kept * self._arrived + 1.0
        self._worked = kept * self._worked + work_s
        self._before *= kept
        each = 1.0 / (_MEMORY_S * self.present * (1.0 - self._before))
        loads.arrivals_s = self._arrived * each
        loads.busy = self._worked * each

    def first_token(self, lease: Lease, now_s: float) -> None:
        """Its prompt, and so every one before it, is computed."""
        slot = lease.slot
        loads = self.loads
        if lease in self._waiting[slot]:
            self._leave(lease)
            for other in list(self._waiting[slot]):
                if other.began_s > lease.began_s:
                    break
                if not other.streams:
                    self._leave(other)
            self._since_s[slot] = now_s
            loads.backlog_tokens[slot] = self._owed[slot]
        lease.running_then = loads.in_flight[slot] - loads.queued[slot]
        if not lease.streams or not lease.tokens:
            return
        ttft_s = now_s - lease.began_s
        rate = self._rate[slot]
        if lease.learns:
            rate.add(lease.ahead_tokens + lease.missing_tokens, ttft_s)
            self._common.add(lease.ahead_tokens + lease.missing_tokens, ttft_s)
            loads.token_s[slot] = toward(rate.slope, self._common.slope, _DOUBT * rate.error)
            loads.step_s += 0.02 * (rate.base - loads.step_s)
        loads.kappa.record(ttft_s, rate.base + lease.missing_tokens * rate.slope)
        self._first.add(ttft_s)

    def usage(self, lease: Lease, usage: Usage, now_s: float) -> None:
        """The reply told its tokens."""
        keys, slot, loads = lease.keys, lease.slot, self.loads
        prompt, answer = usage.prompt_tokens, usage.completion_tokens
        if answer is not None and answer > 0:
            loads.index.record_tokens(slot, answer)
            chain, key, size = keys.chain, keys.affinity, keys.prompt_bytes
            if chain and key is not None:
                # The next turn finds it cached, and with it what comes after the prompt's last whole block.
                last = 1.0 - keys.ends[len(chain) - 1] / size
                loads.index.extend(slot, chain[-1], prompt * last + answer, key)
                totals = self._totals
                totals[chain[-1]] = prompt, answer, size
                if len(totals) > _TOTALS:
                    del totals[next(iter(totals))]
        if not lease.teaches:
            return
        if prompt > 0 and keys.prompt_bytes and keys.prompt_tokens is None and lease.view is not None:
            # Sums would let one huge prompt decide; the mean of ratios lets very short ones, so those count less.
            # The first prompts say more than where learning starts.
            view = lease.view
            told = self._told.get(view.slots, 0)
            self._told[view.slots] = told + 1
            weight = max(0.02, 1.0 / (1 + told)) * min(1.0, prompt / 100)
            view.bytes_per_token += weight * (keys.prompt_bytes / prompt - view.bytes_per_token)
        if usage.cached_tokens is not None and lease.held_tokens:
            self._believed[slot] = 0.99 * self._believed[slot] + min(lease.held_tokens, prompt)
            self._proved[slot] = 0.99 * self._proved[slot] + min(usage.cached_tokens, lease.held_tokens)
            loads.trust[slot] = min(1.0, self._proved[slot] / self._believed[slot])
        if answer is not None and answer > 0:
            self._answer.add(answer)
            if lease.first_s and lease.streams and answer >= _MIN_RUN_TOKENS and now_s > lease.first_s:
                ran = (lease.running_then + loads.in_flight[slot] - loads.queued[slot]) / 2
                self._decode.add(ran, (now_s - lease.first_s) / (answer - 1))
            self._update_decode()

    def close(self, lease: Lease, now_s: float | None) -> None:
        """The request is over, however it ended."""
        slot, loads = lease.slot, self.loads
        loads.in_flight[slot] -= 1
        loads.in_flight_tokens[slot] -= lease.tokens
        if not loads.in_flight[slot]:
            loads.in_flight_tokens[slot] = 0.0  # sums of floats don't come back to zero by themselves
        loads.kv_used[slot] = loads.kv_per_token[slot] * loads.in_flight_tokens[slot]
        if lease in self._waiting[slot]:
            self._leave(lease)
            loads.backlog_tokens[slot] = self._owed[slot]
        if not lease.answered and lease.keys.chain:
            loads.index.forget(slot, lease.keys.chain[lease.held_blocks :])
        elif now_s is not None:
            self._stay.add(now_s - lease.began_s)
            loads.stay_s = stay_s = self._stay.value
            # An answer that takes a tenth longer is as bad as a first token that comes a tenth later.
            stall = self._first.value / stay_s if stay_s > 0.0 else 0.0
            loads.stall = stall if stall < _STALL_LIMIT else _STALL_LIMIT

    # As time passes.

    def settle(self, now_s: float) -> None:
        """Bring every backlog up to `now_s`; where there are very many, to two milliseconds ago at the earliest."""
        if len(self._waiting) > _MANY:
            if 0.0 <= now_s - self._settled_s < _SETTLE_S:
                return
            self._settled_s = now_s
        backlog, token_s = self.loads.backlog_tokens, self.loads.token_s
        for slot, waiting in enumerate(self._waiting):
            for head in waiting:  # the first of them alone
                done = (now_s - self._since_s[slot]) / token_s[slot]
                if done >= head.missing_tokens and not head.streams:
                    done = self._pass_heads(slot, done)
                elif done > _HEAD_LIMIT * head.missing_tokens:
                    done = _HEAD_LIMIT * head.missing_tokens
                backlog[slot] = self._owed[slot] - done
                break

    def _pass_heads(self, slot: int, done: float) -> float:
        """`done` tokens are computed since the head came to be the head: who does not stream and must be through
        leaves. Returns what is done of the new head."""
        waiting = self._waiting[slot]
        while waiting:
            head = next(iter(waiting))
            if head.streams or done < head.missing_tokens:
                return min(done, _HEAD_LIMIT * head.missing_tokens)
            done -= head.missing_tokens
            self._since_s[slot] += head.missing_tokens * self.loads.token_s[slot]
            self._leave(head)
        return 0.0

    def _leave(self, lease: Lease) -> None:
        """Out of the queue; the head's successor begins when told."""
        slot = lease.slot
        waiting = self._waiting[slot]
        del waiting[lease]
        self.loads.queued[slot] -= 1
        self._owed[slot] = self._owed[slot] - lease.missing_tokens if waiting else 0.0

    def _update_decode(self) -> None:
        self.loads.answer_tokens = self._answer.value
        self.loads.decode_s = _DECODE_SHARE * self._decode.slope * self._answer.value

    # What a scrape says.

    def record_capacity(self, slot: int, tokens: float) -> None:
        """The size of a backend's cache."""
        if tokens > 0:
            self.loads.capacity_tokens[slot] = float(tokens)
            self.loads.index.set_capacity(slot, tokens)

    def record_block(self, slot: int, tokens: int) -> None:
        """How many tokens a block of the backend's cache has: what is cached is so in whole blocks."""
        self._block[slot] = max(1, tokens)

    def record_kv(self, slot: int, utilization: float) -> None:
        """The share of its cache, 0 to 1, that a backend's running requests hold."""
        loads = self.loads
        mine = loads.in_flight_tokens[slot]
        if mine > 0:
            # Prompts share what they begin with, and answers grow, so a token in flight is not one in the cache.
            seen = min(_TOKEN_SHARE_LIMIT / loads.capacity_tokens[slot], utilization / mine)
            known = loads.kv_per_token[slot]
            loads.kv_per_token[slot] = seen = seen if not known else known + 0.3 * (seen - known)
            loads.kv_used[slot] = seen * mine

    def record_requests(self, slot: int, there: int) -> None:
        """How many requests a backend has, by its own account. Those that are not ours came past this router: what they
        mean for queues and caches is not known here."""
        ours = self.loads.in_flight[slot]
        if not ours:
            return  # some engines' figures stand still while they rest
        kept = 1.0 - 1.0 / (_ROUNDS * self.present + 1)
        self._there = kept * self._there + there
        self._ours = kept * self._ours + ours
        unseen = (self._there - self._ours) / (self._ours + _UNSEEN_PRIOR)
        self.loads.unseen = min(1.0, unseen) if unseen > _UNSEEN_LEAST else 0.0

    def record_restart(self, slot: int) -> None:
        """The engine started anew: its cache is empty."""
        self.loads.index.clear(slot)
        self.loads.trust[slot] = 1.0
        self._believed[slot] = self._proved[slot] = 0.0
