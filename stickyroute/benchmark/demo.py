"""`stickyroute demo`: four simulated engines and the proxy in one process, round-robin against sticky.

Owns the story: who talks, what is shown, the curl line at the end. Users, requests and sockets are real;
only the GPUs are simulated. Each policy meets cold engines, and hit rates are the engines' own counters.

A benchmark whose load generator fell behind has no figures. Here somebody wants to see what the thing does, on
whatever machine is at hand: the table comes all the same, since what was cached and who served it is counted and no
matter of time, but it says that its times are the machine's too and draws no conclusion from them.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Final, TextIO

import uvloop

from stickyroute.app import App
from stickyroute.benchmark.engines import Engines
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.progress import Progress
from stickyroute.benchmark.results import LATE_LIMIT_S, Lateness, Row, Run, Summary, summarize
from stickyroute.benchmark.workloads.chat import Chat
from stickyroute.settings import Settings
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines

ENGINES: Final = 4
SECONDS: Final = 9.0  # for each policy
SEED: Final = 11
POLICIES: Final = ("round_robin", "sticky")
_USUAL_PORT: Final = 8080

# Conversations about a document: a long opening, short questions, a second or two to read the answer.
# Together they are too much for one engine's cache and fit into four, which is where fleets live.
_CHAT: Final = Chat(
    rate=26.0,
    think_s=1.4,
    turns=30.0,
    system_tokens=160,
    opening_tokens=1300.0,
    question_tokens=60.0,
    spread=0.5,
    answer_tokens=24.0,
    context_tokens=6000,
    fresh=True,
)


@dataclass(slots=True)
class _Fleet:
    """Everything that is up: the proxy and the addresses of its engines."""

    app: App
    urls: list[str]


def run_demo(once: bool, seconds: float = SECONDS, out: TextIO | None = None) -> int:
    """Play both policies for `seconds` each and print the table; stay up afterwards unless `once`.

    Returns the process's exit code; KeyboardInterrupt before the table is the caller's to handle.
    """
    return uvloop.run(_demo(once, seconds, out if out is not None else sys.stdout))


async def _demo(once: bool, seconds: float, out: TextIO) -> int:
    workload = Chat(**{name: getattr(_CHAT, name) for name in _CHAT.__slots__} | {"seconds": seconds})
    users = round(workload.rate * workload.think_s)
    print(
        f"\n  {ENGINES} simulated engines behind one proxy. {users} people, each in a conversation about a "
        f"document,\n  send {workload.rate:.0f} requests a second over real sockets. Caches start cold.\n",
        file=out,
    )
    runs: list[Run] = []
    async with AsyncExitStack() as up:
        for name in POLICIES:
            await up.aclose()  # the fleet of the policy before
            fleet = await _start(up, name, stays=not once and name == "sticky")
            runs.append(await _play(fleet, workload, name, Progress(name, out)))
        print(_table(*runs), file=out)
        if not once:
            await _stay(fleet, out)
    return 0


async def _start(stack: AsyncExitStack, policy: str, stays: bool) -> _Fleet:
    """Engines and proxy; `stack` stops them. One that stays up tries for the usual port first."""
    engines = await serve_engines([EngineConfig()] * ENGINES)
    for engine in engines:
        stack.push_async_callback(engine.close)
    urls = [engine.url for engine in engines]
    for port in (_USUAL_PORT, 0) if stays else (0,):
        app = App(_settings(policy, urls, port))
        try:
            await app.start()
        except OSError:
            if not port:
                raise
            continue
        break
    stack.push_async_callback(app.stop, 0.0)
    return _Fleet(app, urls)


def _settings(policy: str, urls: list[str], port: int) -> Settings:
    return Settings.model_validate(
        {
            "listen": f"127.0.0.1:{port}",
            "admin_listen": "127.0.0.1:0",
            "policy": policy,
            "response_headers": True,
            "backends": [{"name": f"gpu-{number}", "url": url} for number, url in enumerate(urls, 1)],
        }
    )


async def _play(fleet: _Fleet, workload: Chat, name: str, progress: Progress) -> Run:
    rows: list[Row] = []

    def tell(row: Row) -> None:
        rows.append(row)
        progress.update(row.at_s / workload.seconds, _note(rows[-60:]))

    engines = Engines(fleet.urls)
    await engines.begin()
    try:
        load = Load(f"http://127.0.0.1:{fleet.app.port}", "sim", on_row=tell)
        loaded = await load.run(workload.requests(Random(SEED)), grace_s=30.0)
        run = Run(
            workload.name,
            name,
            SEED,
            loaded.duration_s,
            loaded.rows,
            await engines.gained(),
            lateness=loaded.lateness,
            how="http",
            rate=workload.rate,
        )
    finally:
        await engines.end()
    progress.done(f"{len(rows)} requests in {loaded.duration_s:.0f} s")
    return run


def _note(rows: list[Row]) -> str:
    ttft = [row.ttft_s for row in rows if row.ttft_s is not None]
    tokens = sum(row.prompt_tokens for row in rows)
    cached = sum(row.cached_tokens or 0 for row in rows)
    if not ttft or not tokens:
        return ""
    return f"cached {cached / tokens:3.0%}   first token after {median(ttft) * 1e3:4.0f} ms"


def _figures(run: Run) -> Summary:
    """The figures of a run, of one that fell behind too."""
    return summarize(replace(run, lateness=Lateness()))


def _table(usual_run: Run, sticky_run: Run) -> str:
    usual, sticky = _figures(usual_run), _figures(sticky_run)
    late_s = max(max(run.lateness.p99_s, run.lateness.loop_p99_s) for run in (usual_run, sticky_run))
    lines = ["", f"  {'':<30}{'round_robin':>13}{'sticky':>13}"]

    def line(what: str, before: str, after: str, verdict: str = "") -> None:
        lines.append(f"  {what:<30}{before:>13}{after:>13}   {verdict}".rstrip())

    line(
        "prompt tokens found in cache",
        _share(usual.hit_rate),
        _share(sticky.hit_rate),
        _ratio(sticky.hit_rate, usual.hit_rate, "as many"),
    )
    for what, before_s, after_s in (
        ("first token after, p50", usual.ttft_p50_s, sticky.ttft_p50_s),
        ("first token after, p95", usual.ttft_p95_s, sticky.ttft_p95_s),
        ("between two tokens, p50", usual.itl_p50_s, sticky.itl_p50_s),
    ):
        digits = 1 if before_s < 0.1 else 0
        verdict = _ratio(before_s, after_s, "sooner") if late_s <= LATE_LIMIT_S else ""
        line(what, _ms(before_s, digits), _ms(after_s, digits), verdict)
    less = 1 - sticky.computed_tokens / usual.computed_tokens if usual.computed_tokens else 0.0
    line(
        "prompt tokens computed",
        f"{usual.computed_tokens:,}",
        f"{sticky.computed_tokens:,}",
        f"{less:.0%} less work for the GPUs",
    )
    for slot in range(ENGINES):
        line(f"requests to gpu-{slot + 1}", f"{usual.shares[slot]:.0%}", f"{sticky.shares[slot]:.0%}")
    errors = usual.errors + sticky.errors
    line("failed requests", str(usual.errors), str(sticky.errors), "" if not errors else "see above")
    if late_s > LATE_LIMIT_S:
        lines.append(_BUSY.format(late_ms=late_s * 1e3, limit_ms=LATE_LIMIT_S * 1e3))
    return "\n".join([*lines, ""])


def _ms(seconds: float, digits: int) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.{digits}f} ms"


def _share(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.1%}"


def _ratio(over: float, under: float, words: str) -> str:
    """Empty where there is nothing to compare: of no request there is no figure (nan), of a cold cache 0."""
    return f"{over / under:.1f} x {words}" if under > 0 and over > 0 else ""


_BUSY: Final = """
  This machine was busy with other things: requests left, or their answers were looked at, up to {late_ms:.0f} ms late
  ({limit_ms:.0f} ms are allowed, at the 99th percentile). So the times above are its own as well, and no comparison.
  What was found in the cache, computed and sent where is counted, and holds. Try again when it is quiet."""


async def _stay(fleet: _Fleet, out: TextIO) -> None:
    """Serve until SIGINT or SIGTERM."""
    url = f"http://127.0.0.1:{fleet.app.port}"
    print(
        f"  The sticky fleet stays up. Ask it twice: the same x-stickyroute-backend, more cached_tokens:\n\n"
        f"    curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f'      -d \'{{"model": "sim", "user": "alice", "max_tokens": 16, "messages": [{{"role": "user", '
        f'"content": "{_QUESTION}"}}]}}\'\n\n'
        f"    curl {url}/v1/models\n\n"
        f"  Its dashboard: http://127.0.0.1:{fleet.app.admin_port}/\n\n"
        f"  Ctrl-C ends it.",
        file=out,
        flush=True,
    )
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    print("\n  Stopped.", file=out)


_QUESTION: Final = (
    "I have a fleet of engines that each keep the prompts they have seen, and one of them has seen mine. "
    "Which one should answer me now, and what would it cost to ask another?"
)
