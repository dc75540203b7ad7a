"""A workload over HTTP, open loop: each request is sent at its time whether or not others have been answered.

Owns the schedule, the bodies and the watch over its own lateness. Knows one address; what stands behind it
is no business of this module.

A turn of a conversation carries what the engine really answered before, if that has arrived by then, else the
answer the workload planned: arrivals never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson

from stickyroute.benchmark.client import Client, Reply
from stickyroute.benchmark.results import UNANSWERED, Lateness, Row, Sample, lateness_of
from stickyroute.benchmark.workloads.base import Request
from stickyroute.clock import monotonic

_PATH = "/v1/chat/completions"
_LAG_PERIOD_S = 0.02


@dataclass(slots=True)
class Loaded:
    """What one run of load yields. `duration_s` is from the first arrival to the last answer."""

    rows: list[Row]
    lateness: Lateness
    duration_s: float
    samples: list[Sample]


class Load:
    """Sends `requests` to the OpenAI-compatible server at `url` for `model`; several URLs are
    taken in turn.

    `user_header` is a header that carries the user's id besides the body's `user`, for routers that read no
    bodies. `on_row` is told each request as it ends.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        model: str,
        user_header: str = "x-session-id",
        slots: dict[str, int] | None = None,
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        self._urls = [url] if isinstance(url, str) else list(url)
        self._model = model
        self._user_header = user_header
        self._slots = slots or {}
        self._on_row = on_row
        self._replies: dict[int, str] = {}
        self._late_s: list[float] = []
        self._lag_s: list[float] = []
        self._rows: list[Row] = []
        self._cut = False

    async def run(
        self,
        requests: Iterable[Request],
        sampler: Callable[[float], Awaitable[Sample]] | None = None,
        grace_s: float = 120.0,
    ) -> Loaded:
        """Send everything, wait for every answer up to `grace_s` after the last arrival.

        `sampler(at_s)` is asked once a second. Requests that are unanswered then are errors; those without a
        first token have waited so long for it already, which stands in their row.
        """
        tasks: set[asyncio.Task[None]] = set()
        samples: list[Sample] = []
        begin_s = monotonic() + 0.1
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(url)) for url in self._urls]
            lag = asyncio.create_task(self._watch_lag(), name="load: lag")
            watch = (
                asyncio.create_task(_sample(sampler, begin_s, samples), name="load: samples")
                if sampler is not None
                else None
            )
            try:
                for number, request in enumerate(requests):
                    due_s = begin_s + request.at_s
                    wait_s = due_s - monotonic()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    self._late_s.append(max(0.0, monotonic() - due_s))
                    client = clients[number % len(clients)]
                    task = asyncio.create_task(self._one(client, request), name="load: request")
                    tasks.add(task)
                if tasks:
                    _, slow = await asyncio.wait(tasks, timeout=grace_s)
                    if slow:
                        self._cut = True
                        for client in clients:
                            client.close()  # they end as errors
                    await asyncio.gather(*tasks)
            finally:
                for helper in (lag, watch, *tasks):
                    if helper is not None:
                        helper.cancel()
                await asyncio.gather(
                    *(h for h in (lag, watch, *tasks) if h is not None), return_exceptions=True
                )
        duration_s = monotonic() - begin_s
        return Loaded(self._rows, lateness_of(self._late_s, self._lag_s), duration_s, samples)

    async def _one(self, client: Client, request: Request) -> None:
        body: dict[str, object] = {
            "model": self._model,
            "messages": request.prompt.messages(self._replies),
            "max_tokens": request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        headers = {}
        if request.user:
            body["user"] = request.user
            if self._user_header:
                headers[self._user_header] = request.user
        reply = await client.post(_PATH, orjson.dumps(body), headers)
        if not reply.error:
            self._replies[request.reply.seed] = "".join(reply.text)
        row = self._row(request, reply)
        self._rows.append(row)
        if self._on_row is not None:
            self._on_row(row)

    def _row(self, request: Request, reply: Reply) -> Row:
        ended = not reply.error
        pauses = len(reply.gaps_s)
        ttft_s = reply.first_token_s - reply.sent_s if reply.first_token_s else None
        cut = self._cut and not ended
        return Row(
            at_s=request.at_s,
            prompt_tokens=reply.prompt_tokens or request.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.output_tokens or len(reply.text),
            ttft_s=reply.done_s - reply.sent_s if cut and ttft_s is None else ttft_s,
            latency_s=reply.done_s - reply.sent_s if ended else None,
            itl_s=sum(reply.gaps_s) / pauses if pauses else None,
            backend=self._slots.get(reply.headers.get("x-stickyroute-backend", ""), -1),
            reason=reply.headers.get("x-stickyroute-reason", ""),
            error=UNANSWERED if cut else reply.error,
        )

    async def _watch_lag(self) -> None:
        """How late this process's own loop runs: what delays timestamps, not only sends."""
        while True:
            due_s = monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._lag_s.append(max(0.0, monotonic() - due_s))


async def _sample(
    sampler: Callable[[float], Awaitable[Sample]], begin_s: float, samples: list[Sample]
) -> None:
    while True:
        await asyncio.sleep(1.0)
        samples.append(await sampler(monotonic() - begin_s))
