"""The flags of the commands that answer questions: explain, doctor and kv.

Owns names, help and checks of values; the work is imported only for the command that was asked for.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from stickyroute.console.commands import add_admin_flags

__all__ = ["add_commands"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|[KMGT]i?B|[kMGT])")
_UNITS = {
    "B": 1.0, "k": 2.0**10, "KB": 1e3, "KiB": 2.0**10, "M": 2.0**20, "MB": 1e6, "MiB": 2.0**20,
    "G": 2.0**30, "GB": 1e9, "GiB": 2.0**30, "T": 2.0**40, "TB": 1e12, "TiB": 2.0**40,
}  # fmt: skip


def add_commands(commands: Any) -> None:
    """explain, doctor and kv, for argparse's subparsers."""
    _add_explain(commands)
    _add_doctor(commands)
    _add_kv(commands)


def _add_explain(commands: Any) -> None:
    command = commands.add_parser(
        "explain",
        help="which backend a request would go to, and why",
        description="Ask a running stickyroute where it would send a request now, with every term of the decision; "
        "nothing is sent and nothing counted. With --config, ask an idle fleet of that configuration instead. Exit 1: "
        "the request would be refused.",
    )
    command.add_argument(
        "file",
        metavar="FILE",
        help='a request\'s JSON body, or {"path", "headers", "body", "tenant"}; - is stdin',
    )
    command.add_argument("--path", default="/v1/chat/completions", help="the route (default %(default)s)")
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="a header of the request; may be repeated",
    )
    command.add_argument("--tenant", metavar="NAME", help="the gateway key it would come with, by its name")
    command.add_argument(
        "--reveal", action="store_true", help="show the value that became the key, not its hash alone"
    )
    command.add_argument("--json", action="store_true", help="the answer as JSON")
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="explain against this configuration, offline"
    )
    add_admin_flags(command)
    command.set_defaults(run=_explain)


def _add_doctor(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="what breaks prefixes: who, where, by what, and what it costs",
        description="Tell what the prefix doctor of a running stickyroute found, or look through a log of requests: "
        'one JSON object a line, a body or {"body", "headers", "path", "time", "tenant"}. Exit 1: something breaks '
        "prefixes.",
    )
    command.add_argument(
        "file", nargs="?", metavar="FILE.jsonl", help="a log of requests; - is stdin; default: ask the proxy"
    )
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="for a log: where keys and tenants come from"
    )
    command.add_argument(
        "--bytes-per-token", type=_positive, default=4.0, metavar="N", help="for a log (default %(default)g)"
    )
    command.add_argument(
        "--samples",
        action="store_true",
        help="show a little text around each break: text of your users' prompts",
    )
    command.add_argument("--json", action="store_true", help="the report as JSON")
    add_admin_flags(command)
    command.set_defaults(run=_doctor)


def _add_kv(commands: Any) -> None:
    command = commands.add_parser(
        "kv",
        help="how many tokens and users fit into a GPU's KV cache",
        description="From a model's config.json: KV bytes of a token, weights, the tokens that fit, and how many users "
        "stay warm.",
    )
    command.add_argument(
        "--model-config",
        type=Path,
        required=True,
        metavar="FILE",
        help="the model's config.json, or its folder",
    )
    command.add_argument(
        "--gpu-memory", type=_size, required=True, metavar="SIZE", help="of one GPU, such as 80GiB"
    )
    command.add_argument(
        "--tensor-parallel", type=_count, default=1, metavar="N", help="GPUs of one engine (default 1)"
    )
    command.add_argument(
        "--dtype", metavar="TYPE", help="of the weights: bfloat16, fp8, int4, ... (default: the model's)"
    )
    command.add_argument(
        "--kv-dtype", default="auto", metavar="TYPE", help="of the cache: auto (the model's), fp8, ..."
    )
    command.add_argument(
        "--gpu-memory-utilization",
        type=_share,
        default=0.9,
        metavar="X",
        help="as vLLM's (default %(default)g)",
    )
    command.add_argument(
        "--weights", type=_size, metavar="SIZE", help="of the model's files (default: an estimate)"
    )
    command.add_argument(
        "--overhead", type=_size, metavar="SIZE", help="activations and the rest on each GPU (default 1.5GiB)"
    )
    command.add_argument(
        "--context",
        type=_count,
        default=8192,
        metavar="TOKENS",
        help="of one user's conversation (default %(default)d)",
    )
    command.add_argument(
        "--block-size", type=_count, default=16, metavar="TOKENS", help="of the engine (default 16)"
    )
    command.add_argument("--json", action="store_true", help="the figures as JSON")
    command.set_defaults(run=_kv)


def _explain(flags: argparse.Namespace) -> int:
    from stickyroute.console.explain import explain

    return explain(flags)


def _doctor(flags: argparse.Namespace) -> int:
    from stickyroute.console.doctor import doctor

    return doctor(flags)


def _kv(flags: argparse.Namespace) -> int:
    from stickyroute.console.kv import kv

    return kv(flags)


def _size(text: str) -> int:
    """Raises ArgumentTypeError for what is no size."""
    matched = _SIZE.fullmatch(text.strip())
    if matched is None or not float(matched[1]):
        raise argparse.ArgumentTypeError(f"{text}: give a size, such as 80GiB or 80GB")
    return int(float(matched[1]) * _UNITS[matched[2]])


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 on")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1000:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return value


def _share(text: str) -> float:
    value = _positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text}: give a share, above 0 and at most 1")
    return value
