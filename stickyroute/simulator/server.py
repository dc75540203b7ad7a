"""Simulated engines as HTTP servers: many of them, each on a port of its own, in one process and one event
loop.

Owns what a request becomes inside its engine, who gets which token, and how an engine dies. Time is in
`pace`, what is said lies in `routes` and the replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from stickyroute.simulator.asks import Ask, Reader, Refused
from stickyroute.simulator.cache import BlockCache, PrefixCache
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.engine import Engine, StepDone
from stickyroute.simulator.faults import MID_STREAM, Fault, Faults, parse
from stickyroute.simulator.generation import Choice, Generation
from stickyroute.simulator.keys import block_keys
from stickyroute.simulator.kvevents import KvEvents, Origin
from stickyroute.simulator.observed import Observed
from stickyroute.simulator.pace import Pace
from stickyroute.simulator.radix import RadixCache
from stickyroute.simulator.replies import Reply, Usage, WholeReply
from stickyroute.simulator.routes import Routes
from stickyroute.simulator.tokens import load_tokenizer
from stickyroute.simulator.wire import Connection, Date, Request, chunk

# Spaces and all: this one event isn't written by the fast encoder.
_CORE_DIED = chunk(
    b'data: {"error": {"message": "EngineCore encountered an issue. '
    b'See stack trace (above) for the root cause.", '
    b'"type": "InternalServerError", "param": null, "code": 500}}\n\n'
)
_GRACE_TURNS, _GRACE_TURN_S = 50, 0.01  # how long a closing engine waits for its clients to read
_SWEEP_S = 1.0  # how often idle connections are looked for
_SGLANG_NOTICES_STREAM_S, _SGLANG_NOTICES_S = 2.0, 4.0  # after which SGLang aborts for a client that left
_IDLE_LIMIT_S = 5.0  # uvicorn's keep-alive, which both engines use


class RunningEngine:
    """One engine behind one port. Made by `serve_engines`.

    `engine` is the state machine inside, `observed` what its server has seen, `connections` those that are
    open, `pace` its clock and how late that ran.
    """

    def __init__(self, config: EngineConfig, host: str, date: Date) -> None:
        self.config = config
        self.host = host
        self.port = 0
        self.faults = Faults()
        self.tokenizer = load_tokenizer(config.tokenizer)
        self.reader = Reader(config, self.tokenizer)
        self.pace = Pace(config.speedup, self.refresh)
        self._date = date
        self._loop = asyncio.get_running_loop()
        self._routes = Routes(self)
        self.connections: set[Connection] = set()
        self._generations: set[Generation] = set()
        self._server: asyncio.Server | None = None
        self._schedule: set[asyncio.TimerHandle] = set()
        self.kv_events: KvEvents | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._reset_state()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the port is open."""
        return self._server is not None

    async def start(self, port: int = 0) -> None:
        """Open the port; 0 picks a free one, the same again after a crash."""
        wanted = port or self.port
        config = self.config
        if config.kv_events is not None:
            sglang = config.dialect == "sglang"
            size = config.page_size if sglang else config.profile.block_size
            self.kv_events = KvEvents(config.kv_events, config.kv_replay, config.kv_topic, size, sglang)
            self._reset_state()
        self._server = await self._loop.create_server(
            lambda: Connection(self._routes.handle, self.connections, self._date),
            self.host,
            wanted,
            backlog=1024,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        for after_s, text in config.faults:
            fault = parse(text)
            self._later(after_s / self.config.speedup, self.inject, fault)
        self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_idle)

    async def close(self) -> None:
        """Stop as on SIGTERM: streams end with finish reason `abort`, then the port closes."""
        server = self._stop_listening()
        for generation in list(self._generations):
            generation.abort()
        for connection in list(self.connections):
            connection.close()
        if server is not None:
            server.close()
            for _ in range(_GRACE_TURNS):
                if not self.connections:
                    break
                await asyncio.sleep(_GRACE_TURN_S)
            for connection in list(self.connections):  # whose client reads too slowly
                connection.reset()
            await server.wait_closed()

    def crash(self) -> None:
        """Die as on kill -9: every connection is reset, the port refuses, the cache is gone."""
        server = self._stop_listening()
        if server is not None:
            server.close()
        for generation in self._generations:
            generation.forget()
        self._generations.clear()
        for connection in list(self.connections):
            connection.reset()
        self._reset_state()

    async def restart(self) -> None:
        """Come back after a crash on the same port, with a cold cache, counters at zero and no faults."""
        await self.start(self.port)
        self.heal()

    def inject(self, fault: Fault) -> None:
        """Turn a fault on; it goes off by itself after `fault.for_s` real seconds."""
        if fault.kind == "crash":
            self.crash()
            return
        if fault.kind == "lost_cache":
            self.engine.cache.clear()
            self._settle()
            return
        self.faults.turn_on(fault)
        self._apply_faults()
        if fault.kind == "engine_error":
            for generation in list(self._generations):
                generation.abort(_CORE_DIED)
        if fault.for_s is not None:
            self._later(fault.for_s, self.heal, fault.kind)

    def heal(self, kind: str | None = None) -> None:
        """Turn one kind of fault off, or all."""
        self.faults.turn_off(kind)
        self._apply_faults()

    def close_idle(self) -> None:
        """Close the connections on which nothing was asked for five seconds, as uvicorn does."""
        for connection in list(self.connections):
            if connection.idle_s() >= _IDLE_LIMIT_S:
                connection.close()

    def generate(
        self, connection: Connection, request: Request, ask: Ask, reply: WholeReply, stream: Reply | None
    ) -> None:
        """Admit a request; its reply goes to the connection as the engine computes it."""
        now_s = self._advance()
        engine = self.engine
        generation = Generation(
            connection,
            reply,
            stream,
            ask.reason,
            self._usage,
            self._ended,
            fault=self.faults.take(*MID_STREAM),
            head_waits=self.config.dialect == "sglang",
            headers=lambda: self._routes.load_header(request),
        )
        connection.exchange = generation
        self._generations.add(generation)
        self.observed.in_flight += 1
        size = engine.cache.block_size
        for prompt in ask.prompts:
            for _ in range(ask.n):
                index = len(generation.choices)
                seed = prompt.tobytes() if not index else prompt.tobytes() + b"%d" % index
                answer, pieces = self.tokenizer.answer(seed, ask.output_tokens)
                tokens = prompt + answer
                choice = Choice(generation, index, pieces, Origin(tokens, ask.adapter, ask.salt))
                generation.choices.append(choice)
                keys = block_keys(tokens, size, ask.root)
                choice.sequence = engine.submit(now_s, keys, len(prompt), ask.output_tokens, choice)
        if ask.token_ids:
            prompts = [prompt.tolist() for prompt in ask.prompts for _ in range(ask.n)]
            answers = [
                list(choice.origin.tokens[len(prompt) :])
                for choice, prompt in zip(generation.choices, prompts, strict=True)
            ]
            reply.tell_tokens(prompts, answers)
        self._settle()

    def busy(self) -> bool:
        """Whether an admission limit turns the next request away."""
        limit = self.config.max_queued
        if self.faults.take("busy") is not None:
            return True
        if limit is None:
            return False
        waiting = self.engine.waiting
        return (waiting if self.config.dialect == "sglang" else waiting + self.engine.running) >= limit

    def refresh(self) -> None:
        """Bring the engine up to the present: when a step is over, and before its gauges are read."""
        self._advance()
        self._settle()

    def check_fit(self, ask: Ask) -> None:
        """Refuse what the cache could never hold, rather than preempt it for ever."""
        for prompt in ask.prompts:
            if len(prompt) + ask.output_tokens > self.engine.cache.capacity_tokens:
                raise Refused(
                    400,
                    f"{len(prompt)} + {ask.output_tokens} tokens are more than the KV cache of this engine "
                    f"holds.",
                    "BadRequestError",
                )

    def _reset_state(self) -> None:
        profile = self.config.profile
        cache: PrefixCache
        if self.config.dialect == "sglang":
            cache = radix = RadixCache(profile.blocks * profile.block_size, self.config.page_size)
            if self.kv_events is not None:
                radix.on_stored, radix.on_removed = self.kv_events.stored, self.kv_events.removed
        else:
            cache = blocks = BlockCache(profile.blocks, profile.block_size)
            if self.kv_events is not None:
                blocks.on_stored, blocks.on_removed = self.kv_events.stored, self.kv_events.removed
                blocks.on_cleared = self.kv_events.cleared
        self.engine = Engine(profile, cache, trace=True, prefill_first=self.config.dialect == "sglang")
        self.observed = Observed(self.config.dialect, time.time())
        self.pace.restart()
        self._apply_faults()

    def _apply_faults(self) -> None:
        slow = self.faults.get("slow")
        self.engine.slowdown = slow.factor if slow is not None else 1.0
        if "dead" in self.faults:
            self.pace.stop()
        else:
            self.pace.go()
        self._settle()

    def _advance(self) -> float:
        now_s = self.pace.now_s()
        for step in self.engine.advance(now_s):
            self._deliver(step)
        return now_s

    def _deliver(self, step: StepDone) -> None:
        observed = self.observed
        time_s = step.time_s
        for sequence in step.tokens:
            choice: Any = sequence.owner
            if choice.sent:
                observed.itl_s.observe(time_s - choice.last_s)
            choice.last_s = time_s
            choice.generation.token(choice)
        for sequence in step.first:
            observed.ttft_s.observe(time_s - sequence.arrived_s)
            observed.queue_s.observe(sequence.scheduled_s - sequence.arrived_s)
            observed.prefill_s.observe(time_s - sequence.scheduled_s)
        for sequence in step.finished:
            observed.latency_s.observe(time_s - sequence.arrived_s)
            if not sequence.output_tokens:
                choice = sequence.owner
                choice.generation.computed(choice)

    def _settle(self) -> None:
        """After every change of the engine: tell what its cache did, and wake up when its step is over."""
        if self.kv_events is not None:
            self.kv_events.flush()
        if self.alive:
            self.pace.wake_at(self.engine.next_step_s)

    def _usage(self, generation: Generation) -> Usage:
        prompt = completion = cached = created = 0
        size = self.engine.cache.block_size
        for choice in generation.choices:
            sequence = choice.sequence
            assert sequence is not None  # every choice is submitted before its first token can come
            completion += choice.sent
            prompt += sequence.prompt_tokens
            cached += sequence.cached_tokens
            created += sequence.prompt_tokens // size * size - sequence.cached_tokens
        return Usage(prompt, completion, cached if self.config.report_cached else None, max(0, created))

    def _ended(self, generation: Generation, left: bool) -> None:
        self._generations.discard(generation)
        self.observed.in_flight -= 1
        if not left:
            for choice in generation.choices:
                self.observed.finished[generation.reason_of(choice)] += 1
            self._abort(generation)  # what still runs: the engine stops
            return
        self.observed.aborted += 1
        if self.config.dialect == "vllm":
            self._abort(generation)
            return
        # SGLang looks for a client that left now and then, and computes on until it does.
        notices_s = _SGLANG_NOTICES_STREAM_S if generation.stream is not None else _SGLANG_NOTICES_S
        self._later(notices_s / self.config.speedup, self._abort, generation)

    def _abort(self, generation: Generation) -> None:
        for choice in generation.choices:
            if choice.sequence is not None:
                self.engine.abort(choice.sequence)

    def _later(self, after_s: float, call: Callable[..., None], *args: object) -> None:
        """Call in so many real seconds, unless the engine stops before."""

        def run() -> None:
            self._schedule.discard(handle)
            call(*args)

        handle = self._loop.call_later(after_s, run)
        self._schedule.add(handle)

    def _sweep_idle(self) -> None:
        self.close_idle()
        self._sweep = self._loop.call_later(_SWEEP_S, self._sweep_idle)

    def _stop_listening(self) -> asyncio.Server | None:
        for timer in (self._sweep, *self._schedule):
            if timer is not None:
                timer.cancel()
        self._sweep = None
        self.pace.restart()
        self._schedule.clear()
        if self.kv_events is not None:
            self.kv_events.close()
            self.kv_events = None
        server, self._server = self._server, None
        return server


async def serve_engines(
    configs: Seq[EngineConfig], host: str = "127.0.0.1", port: int = 0
) -> list[RunningEngine]:
    """Start one engine a config, on `port`, `port` + 1 and so on, or on free ports when it is 0."""
    date = Date()
    engines = [RunningEngine(config, host, date) for config in configs]
    complete = False
    try:
        for offset, engine in enumerate(engines):
            await engine.start(port + offset if port else 0)
        complete = True
    finally:
        if not complete:
            for engine in engines:
                await engine.close()
    return engines
