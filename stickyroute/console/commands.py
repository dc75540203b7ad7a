"""The flags of the commands that talk to a running stickyroute.

Owns names, help and checks of values; the work is imported only for the command that was asked for.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stickyroute import defaults

__all__ = ["add_admin_flags", "add_commands"]

_OPERATE = {
    "drain": (
        "send a backend no new sessions and let what runs finish",
        (
            "From now on no new requests go to the backend, apart from those that only it can answer. Running replies "
            "finish, and its conversations move at their next turn; undrain takes it back at any time. Exit code 1: "
            "refused, 2: nobody answers, 3: requests still run at the time limit."
        ),
    ),
    "undrain": ("take a drained backend back", "Requests go to the backend again, and its keys come home."),
    "disable": (
        "send a backend nothing at all",
        "From now on no request of any kind goes to the backend. Running replies finish; enable takes it back.",
    ),
    "enable": (
        "take a backend back, disabled or drained",
        "Requests go to the backend again, and its keys come home.",
    ),
}


def add_commands(commands: Any) -> None:
    """drain, undrain, disable, enable and top, for argparse's subparsers."""
    for action, (text, description) in _OPERATE.items():
        command = commands.add_parser(action, help=text, description=description)
        command.add_argument("names", nargs="+", metavar="NAME", help="a backend's name; may be several")
        if action == "drain":
            command.add_argument("--wait", action="store_true", help="until nothing runs there any more")
            command.add_argument(
                "--timeout", type=_seconds, metavar="S", help="wait for so many seconds at most, then exit 3"
            )
        add_admin_flags(command)
        command.set_defaults(run=_operate, action=action)
    command = commands.add_parser(
        "top",
        help="the fleet, its load and its decisions, live in a terminal",
        description="Show what the dashboard shows: hit rate, time to first token, every backend's state, KV cache, "
        "load and share, warnings, and decisions as they are made. q or Ctrl-C ends it.",
    )
    command.add_argument("--once", action="store_true", help="print it once and exit, for scripts")
    command.add_argument("--no-color", action="store_true", help="no colours; NO_COLOR means the same")
    add_admin_flags(command)
    command.set_defaults(run=_top)


def add_admin_flags(command: argparse.ArgumentParser) -> None:
    """--admin, --token and --token-file; `client.open_admin` reads them."""
    command.add_argument(
        "--admin",
        metavar="URL",
        help=f"the admin port (default http://{defaults.ADMIN_LISTEN}, or what STICKYROUTE_ADMIN_LISTEN says)",
    )
    command.add_argument(
        "--token",
        metavar="TOKEN",
        help="the admin token; better in STICKYROUTE_ADMIN_TOKEN or a file, since everybody here can see flags",
    )
    command.add_argument("--token-file", type=Path, metavar="FILE", help="a file that holds the admin token")


def _operate(flags: argparse.Namespace) -> int:
    from stickyroute.console.operate import operate

    return operate(flags.action, flags)


def _top(flags: argparse.Namespace) -> int:
    from stickyroute.console.top import top

    return top(flags)


def _seconds(text: str) -> float:
    """Raises ArgumentTypeError for what is no length of time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"{text}: give seconds")
    return seconds
