"""`stickyroute simulate`: engines in the foreground until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from stickyroute.errors import ConfigError
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.profiles import PROFILES
from stickyroute.simulator.server import serve_engines


def parser() -> argparse.ArgumentParser:
    """The command line. Everything it sets is a field of `EngineConfig` or `Profile`."""
    flags = argparse.ArgumentParser(
        prog="stickyroute simulate",
        description="Simulated engines: real prefix caches and step times, no GPU. See docs/simulator.md.",
    )
    flags.add_argument("--engines", type=int, default=4, help="how many engines (default 4)")
    flags.add_argument(
        "--profile", choices=sorted(PROFILES), default="demo", help="model and GPU (default demo)"
    )
    flags.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    flags.add_argument("--port", type=int, default=9000, help="first port; the others follow (default 9000)")
    flags.add_argument(
        "--speedup", type=float, default=1.0, help="how much faster than real time (default 1)"
    )
    flags.add_argument(
        "--dialect", choices=["vllm", "sglang"], default="vllm", help="whose API (default vllm)"
    )
    flags.add_argument("--model", default="sim", help="the model's name (default sim)")
    flags.add_argument(
        "--adapter", action="append", default=[], help="a LoRA adapter's name; may be repeated"
    )
    flags.add_argument("--blocks", type=int, help="blocks of the KV cache, instead of the profile's")
    flags.add_argument("--block-size", type=int, help="tokens a block, instead of the profile's")
    flags.add_argument("--max-queued", type=int, help="answer 503 past so many requests")
    flags.add_argument("--api-key", help="ask for this bearer token under /v1")
    flags.add_argument("--no-cache-report", action="store_true", help="leave cached tokens out of the usage")
    flags.add_argument(
        "--answer-tokens", type=int, default=128, help="answer length without a limit (default 128)"
    )
    flags.add_argument("--tokenizer", type=Path, help="a tokenizer.json (needs the package tokenizers)")
    flags.add_argument(
        "--kv-events",
        metavar="ENDPOINT",
        help="publish KV events, for example on tcp://*:5557; each further engine takes the next port",
    )
    flags.add_argument("--kv-replay", metavar="ENDPOINT", help="where missed KV events are replayed")
    flags.add_argument("--kv-topic", default="", help="the topic of KV events (default empty)")
    flags.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="SECONDS:FAULT",
        help="turn a fault on after so many seconds, for example 30:crash or 5:close:count=2,after_tokens=3",
    )
    return flags


def config_of(args: argparse.Namespace) -> EngineConfig:
    """The engine the flags describe; ValueError names what is wrong."""
    profile = PROFILES[args.profile]
    if args.blocks is not None:
        profile = replace(profile, blocks=args.blocks)
    if args.block_size is not None:
        profile = replace(profile, block_size=args.block_size)
    faults = []
    for text in args.fault:
        seconds, _, fault = text.partition(":")
        faults.append((float(seconds), fault))
    return EngineConfig(
        profile=profile,
        model=args.model,
        dialect=args.dialect,
        speedup=args.speedup,
        api_key=args.api_key,
        adapters=tuple(args.adapter),
        report_cached=not args.no_cache_report,
        max_queued=args.max_queued,
        answer_tokens=args.answer_tokens,
        tokenizer=args.tokenizer,
        kv_events=args.kv_events,
        kv_replay=args.kv_replay,
        kv_topic=args.kv_topic,
        faults=tuple(faults),
    )


def fleet(config: EngineConfig, count: int) -> list[EngineConfig]:
    """One config an engine: alike, but for the ports of their KV events."""
    return [
        replace(config, kv_events=_nth(config.kv_events, index), kv_replay=_nth(config.kv_replay, index))
        for index in range(count)
    ]


def _nth(endpoint: str | None, index: int) -> str | None:
    """A ZMQ endpoint with its port, or the end of its path, moved on by `index`."""
    if endpoint is None:
        return None
    if endpoint.endswith(":*"):
        return endpoint  # a free port for each
    head, sep, port = endpoint.rpartition(":")
    return f"{head}{sep}{int(port) + index}" if port.isdigit() else f"{endpoint}{index}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code."""
    args = parser().parse_args(argv)
    try:
        config = config_of(args)
        return uvloop.run(_serve(config, args.engines, args.host, args.port))
    except (ValueError, OSError, ConfigError) as failure:
        print(f"stickyroute simulate: {failure}", file=sys.stderr)
        return 1


async def _serve(config: EngineConfig, count: int, host: str, port: int) -> int:
    engines = await serve_engines(fleet(config, count), host, port)
    for engine in engines:
        print(f"{engine.url}  {config.dialect} {config.model}  {config.profile.name}", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    gc.freeze()  # caches are big and live long: looking through them again and again delays steps
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    for engine in engines:
        await engine.close()
    return 0
