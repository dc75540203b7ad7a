"""The path of a proxied request: what is asked, who takes it, send it, relay the reply, account for it.

Nothing here waits: every step runs to its end inside the callback that made it possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from stickyroute.accesslog import AccessLog
from stickyroute.clock import monotonic
from stickyroute.defaults import REMEMBERED_IDS
from stickyroute.errors import GatewayTimeout, NoBackend, StickyrouteError, UpstreamFailed
from stickyroute.fleet import Fleet, Pool
from stickyroute.fleet.health import Outcome
from stickyroute.http.listener import ClientConnection
from stickyroute.http.message import Request
from stickyroute.http.pool import CONNECT_FAILURES, NO_SOCKET
from stickyroute.http.upstream import BROKEN, GARBAGE, STALE
from stickyroute.http.words import HEADER_TIMEOUT
from stickyroute.metrics import Metrics
from stickyroute.openai.failures import BUSY, DEAD
from stickyroute.openai.models import unknown_model
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Route, RouteTable, Shape
from stickyroute.openai.state import held_id, holds_id
from stickyroute.proxy.blame import Blame
from stickyroute.proxy.exchange import Exchange, Target
from stickyroute.proxy.forward import request_head
from stickyroute.proxy.front import CORS_FIELDS, Front, problem_body, problem_lines
from stickyroute.proxy.hold import Hold
from stickyroute.proxy.ledger import Ledger, Observer
from stickyroute.proxy.witness import Witness, Witnesses
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.residence import Residence
from stickyroute.routing.retry import RetryBudget
from stickyroute.routing.router import Router
from stickyroute.routing.view import FleetView
from stickyroute.settings import Settings
from stickyroute.tracing import Tracer

Learn = Callable[[int, RequestKeys, Shape, str | None, Mapping[str, Any] | None], None]
"""Hears of a request that was sent: the backend's slot, its keys, route, model and body. Must cost next to nothing."""

Choose = Callable[[RequestKeys, FleetView, Collection[int]], Decision | None]

_UNREAD: Final = Asked(None, False, None)
# A backend that answers so is full or starting up, and has not begun to work on the request.
_BUSY: Final = frozenset({429, 503})
_NO_REPLY: Final = "The backend closed the connection without a reply."


class Proxy:
    """Handles every request of the public port; `targets` are the fleet's backends by slot."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        targets: Sequence[Target],
        routes: RouteTable,
        affinity: AffinityRule,
        router: Router,
        front: Front,
        metrics: Metrics,
        access_log: AccessLog | None,
        learn: Learn | None = None,
        observers: tuple[Observer, ...] = (),
        witnesses: tuple[Witness, ...] = (),
    ) -> None:
        self._fleet = fleet
        self._targets = targets
        self._front = front
        self._metrics = metrics
        self.hold = Hold(self)
        self.blame = Blame(fleet)
        self._ledger = Ledger(fleet, metrics, access_log, observers)
        self._learn = learn
        self._witnesses = Witnesses(witnesses)
        self.tracer: Tracer | None = None
        self._residence = Residence(REMEMBERED_IDS)
        self.in_flight = 0
        self.retune(settings, affinity, router, routes)

    def retune(self, settings: Settings, affinity: AffinityRule, router: Router, routes: RouteTable) -> None:
        """Go by these from the next request on, and by these alone; what is running goes on as it began.

        Never awaits, so it is atomic. Backends are not its matter: `targets` follows the fleet by slot.
        """
        self._routes = routes
        self._affinity = affinity
        self._router = router
        self._budget = RetryBudget(settings.retries.budget, settings.retries.burst)
        self._retries_max = settings.retries.max
        self._max_in_flight = settings.limits.max_in_flight
        self._strict_models = settings.strict_models
        self._strict_json = settings.strict_json
        self._show_decision = settings.response_headers
        self.blame.first_byte_s = settings.probe.first_byte_s
        self.hold.retune(settings.hold.requests, settings.hold.wait_s)
        self._counts_tokens = router.needs & Needs.CHAIN == Needs.CHAIN
        self._watches = settings.usage.read or self._counts_tokens  # first tokens and usage cost a little
        self._asks_usage = settings.usage.ask

    def learn_by(self, learn: Learn | None) -> None:
        """Who hears of requests from now on, if anybody."""
        self._learn = learn

    @property
    def affinity(self) -> AffinityRule:
        """The rule in force."""
        return self._affinity

    def close(self) -> None:
        """The proxy stops: answer who waits for a backend now, rather than at the end of the wait."""
        self.hold.close()

    # One request.

    def handle(self, client: ClientConnection, request: Request) -> None:
        """Answer a whole request here, or begin to proxy it."""
        route = self._routes.match(request.method, request.path)
        try:
            if route is None:
                self._front.off_the_map(client, request)
                return
            tenant = self._front.tenant(request, route)
            if self._front.answers(client, request, route):
                return
            began_s = monotonic()
            asked = self._read(route, request)
            pool = self._pool_for(route, asked)
            keys = self._affinity.keys(request.headers, route.shape, asked, tenant, pool.view.slots)
            self._admit()
        except StickyrouteError as problem:
            self._front.refuse(client, request, problem, route)
            return
        exchange = client.relay = Exchange(self, client, request, route, asked, pool, keys)
        exchange.held = held_id(route, request.path, asked.body)
        if self._front.allow_origins:
            exchange.unwanted = CORS_FIELDS  # engines allow any origin by default; two answers are none
        if self.tracer is not None:
            exchange.begin_trace(self.tracer, began_s)
        if self._asks_usage and asked.stream:
            exchange.ask_for_usage(asked)
        self.in_flight += 1
        self._budget.record_request()
        self._attempt(exchange)
        self._metrics.decision_time(exchange.sent_s - began_s)
        if self._learn is not None and exchange.slot >= 0:
            self._learn(exchange.slot, keys, route.shape, asked.model, asked.body)
        if self._witnesses and not exchange.over:
            self._witnesses.tell(exchange, asked, tenant)

    def _attempt(self, exchange: Exchange) -> None:
        """Choose a backend not tried yet and send the request there, or answer that there is none."""
        keys, pool = exchange.keys, exchange.pool
        learns = exchange.learns = self._counts_tokens or bool(keys.chain)
        streams = learns and exchange.asks_stream  # whether the lease will hear of the first token
        if self._counts_tokens:
            self._fleet.settle(monotonic())
        while True:
            decision = self._choose(exchange)
            now_s = exchange.sent_s = monotonic()
            if decision is None:
                self._nobody(exchange)
                return
            exchange.tried.append(decision.slot)
            exchange.lease = self._fleet.lease(decision.slot, keys, now_s, pool, streams)
            if exchange.lease is not None:
                break
        exchange.slot = decision.slot
        exchange.blamed = exchange.silent = False
        exchange.reason = decision.reason
        self._metrics.decisions(decision.reason)
        exchange.attempts += 1
        self._send(exchange, fresh=False)

    def _choose(self, exchange: Exchange) -> Decision | None:
        """The backend for the next attempt; None where nobody can take it."""
        held, keys, pool, tried = exchange.held, exchange.keys, exchange.pool, exchange.tried
        route = self._router.route
        if held is None:
            return route(keys, pool.view, tried)
        return self.choose(held, keys, pool, tried, route)

    def choose(
        self, held: bytes | None, keys: RequestKeys, pool: Pool, tried: Collection[int], route: Choose
    ) -> Decision | None:
        """The backend that keeps what the request comes back to, if that is known, and no other; else what `route`
        says: the router's own, or its peek."""
        if held is not None:
            slot = self._residence.find(held)
            if slot is not None and slot in pool.view.slots:
                there = self._fleet.takes_pinned(slot) and slot not in tried
                return Decision(slot, "pinned") if there else None
        return route(keys, pool.view, tried)

    def _send(self, exchange: Exchange, *, fresh: bool) -> None:
        target = self._targets[exchange.slot]
        trace = b""
        if exchange.trace is not None:
            trace = exchange.traced_attempt(self._fleet.at(exchange.slot).name)
        head = request_head(exchange, target, trace, own_keys=not self._front.gateway_keys)
        target.pool.send(exchange, head, exchange.request.body, fresh=fresh)

    # What becomes of an attempt.

    def wants(self, exchange: Exchange, status: int) -> bool:
        """Whether a reply is relayed; a busy answer is not while somebody else may take the request.

        Nor is the word of one backend that it does not have what a request comes back to: the next may.
        """
        if status in _BUSY:
            self.blame.tell(exchange, Outcome.BUSY, exchange.retry_after_s())
            return not self._again(exchange, "busy")
        if status == 404 and exchange.held is not None:
            self._residence.forget(exchange.held)
            return not self._look_elsewhere(exchange)
        return True

    def relays(self, exchange: Exchange, status: int) -> None:
        """This reply is the one: look for what it tells of ids, first tokens and usage."""
        if not 200 <= status < 300:
            return
        if exchange.held is not None:
            self._residence.note(exchange.held, exchange.slot)
        if self._watches:
            exchange.watch_reply()
        elif exchange.gives_id:
            exchange.looking = True

    def excused(self, exchange: Exchange, failure: str) -> bool:
        """What the engine itself says it failed at; go on where it cannot be at work on the request."""
        if failure == BUSY:
            self.blame.tell(exchange, Outcome.BUSY)
            return self._again(exchange, "busy")
        if failure == DEAD:
            self.blame.tell(exchange, Outcome.ENGINE_DEAD)
            return self._again(exchange, "engine_dead")
        self.blame.tell(exchange, Outcome.SERVER_ERROR)
        return False

    def gave(self, exchange: Exchange, name: bytes) -> None:
        """The reply gave out an id under which the client may come back, to that backend alone."""
        self._residence.note(name, exchange.slot)

    def begun(self, exchange: Exchange) -> None:
        """The backend has computed the prompt."""
        exchange.first_token_s = now_s = monotonic()
        if exchange.lease is not None and exchange.learns:
            exchange.lease.first_token(now_s)

    def attempt_failed(self, exchange: Exchange, failure: str) -> None:
        """Nothing was sent to the client yet: go on where that is safe, else say what happened."""
        if failure == STALE:
            # The pooled connection had been closed at the other end; the backend itself may be well.
            self._metrics.retries(STALE)
            exchange.may_have_run = True
            self._send(exchange, fresh=True)
            return
        self._metrics.upstream_failures(self._fleet.at(exchange.slot).name, failure)
        if failure in CONNECT_FAILURES:
            self.blame.tell(exchange, Outcome.CONNECT_FAILED)
            self._targets[exchange.slot].pool.close_idle()
            # Nothing was sent, so the next one is tried freely: each failure takes a backend out of the
            # choice. But where a pooled connection was dropped and now nobody listens, the request itself may
            # have brought the backend down, and must not go round the whole fleet.
            if exchange.may_have_run and exchange.attempts > self._retries_max:
                self._answer(exchange, UpstreamFailed(_NO_REPLY))
                return
            self._metrics.retries(failure)
            exchange.release()
            self._attempt(exchange)
        elif failure == NO_SOCKET:
            self._answer(exchange, NoBackend("No connection can be opened now.", retry_after_s=1.0))
        elif failure in (BROKEN, GARBAGE):
            self.blame.tell(exchange, Outcome.RESET)
            self._answer(exchange, UpstreamFailed("The backend broke off its reply."))
        elif failure == HEADER_TIMEOUT:
            # Never tried again for slowness alone: the engine may be running it.
            self.blame.tell(exchange, Outcome.NO_FIRST_BYTE)
            self._answer(exchange, GatewayTimeout("The backend did not begin to reply in time."))
        else:
            self.blame.tell(exchange, Outcome.RESET)
            if not self._again(exchange, failure):
                self._answer(exchange, UpstreamFailed(_NO_REPLY))

    def _again(self, exchange: Exchange, kind: str) -> bool:
        """Drop the attempt at hand for a further one, if limit, budget and fleet allow it.

        Who is busy has done no work and is left alone from here on, so going on to somebody who is well adds no load:
        it is not taken from the budget, which one full backend with a long queue would empty.
        """
        if exchange.attempts > self._retries_max:
            return False
        decision = self._choose(exchange)
        if decision is None:
            return False
        free = kind == "busy" and self._fleet.is_well(decision.slot)
        if not free and not self._budget.try_spend():
            return False
        self._next(exchange, kind)
        return True

    def _look_elsewhere(self, exchange: Exchange) -> bool:
        """Ask the next backend, each once: no engine did any work, so neither limit nor budget is touched."""
        if self._choose(exchange) is None:
            return False
        self._next(exchange, "not_here")
        return True

    def _next(self, exchange: Exchange, kind: str) -> None:
        self._metrics.retries(kind)
        if exchange.upstream is not None:
            exchange.upstream.discard()
            exchange.upstream = None
        exchange.release()
        self._attempt(exchange)

    def _nobody(self, exchange: Exchange) -> None:
        """Nobody can take it now: it waits, if that is allowed."""
        exchange.slot, exchange.reason = -1, ""  # whoever was tried before, it is nobody's answer
        hold = self.hold
        if not hold.limit or not hold.take(exchange, exchange.sent_s):
            self.give_up(exchange)

    def may_go(self, exchange: Exchange) -> bool:
        """Whether a backend of a request that waits is there again; fleet and models may be others by now."""
        exchange.pool = self._fleet.pool(exchange.model) or exchange.pool
        available = self._fleet.available
        return any(available[slot] for slot in exchange.pool.view.slots)

    def go_on(self, exchange: Exchange) -> None:
        """Try a request that waited anew; nobody has it, so everybody may be asked again."""
        exchange.tried.clear()
        self._attempt(exchange)

    def give_up(self, exchange: Exchange) -> None:
        """Answer that nobody can take it."""
        wait_s = max(1.0, self._fleet.next_retry_s(monotonic()))
        self._answer(exchange, NoBackend("No backend can take this request now.", retry_after_s=wait_s))

    def _answer(self, exchange: Exchange, problem: StickyrouteError) -> None:
        exchange.answer(problem.status, problem_body(exchange.route, problem), problem_lines(problem))

    def reply_lines(self, exchange: Exchange) -> bytes:
        """Response fields that every reply of an exchange carries."""
        lines = b"x-request-id: %b\r\n" % exchange.request.request_id
        if self._show_decision and exchange.slot >= 0:
            name = self._fleet.at(exchange.slot).name.encode("latin-1", "replace")
            lines += b"x-stickyroute-backend: %b\r\n" % name
            lines += b"x-stickyroute-reason: %b\r\n" % exchange.reason.encode()
        if self._front.allow_origins:
            lines += self._front.cors(exchange.request)
        return lines

    def account(self, exchange: Exchange, end: str) -> None:
        """The one place where an exchange ends."""
        self.blame.ended(exchange, end)
        self.in_flight -= 1
        if self.hold:
            self.hold.drop(exchange)
        self._ledger.close(exchange, end)

    # Before a request is proxied.

    def _read(self, route: Route, request: Request) -> Asked:
        """What the body asks for. On opaque routes it is read only if its model or an id in it decides."""
        if route.shape is not Shape.OPAQUE:
            return parse(route.shape, request.body, self._strict_json)
        kind = request.headers.get(b"content-type", b"")
        decides = self._fleet.many_pools or holds_id(route, request.body)
        if decides and kind.startswith(b"application/json"):
            return parse(route.shape, request.body, False)
        return _UNREAD

    def _pool_for(self, route: Route, asked: Asked) -> Pool:
        fleet, model = self._fleet, asked.model
        pool = fleet.pool(model)
        if pool is None:
            if self._strict_models and route.shape is not Shape.OPAQUE:
                raise unknown_model(model or "")
            pool = fleet.pool(None)
        if pool is None:
            raise NoBackend("No backend is configured.", retry_after_s=1.0)
        return pool

    def _admit(self) -> None:
        limit = self._max_in_flight
        if limit is not None and self.in_flight >= limit:
            raise NoBackend("Too many requests are in flight.", code="over_capacity", retry_after_s=1.0)
