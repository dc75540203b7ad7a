"""The `stickyroute` command: flags to settings, then one call to whoever does the work.

Owns the flags and the exit codes: 0 done, 1 a mistake that was asked for (`check`, `preview`), 2 it could not
start, 130 interrupted. Imports the heavy parts only in the command that needs them, so that `check` and `--help`
are quick.
A failure that a person can mend is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from stickyroute.build import version_words
from stickyroute.console import commands as console
from stickyroute.console import inquiries
from stickyroute.errors import ConfigError

_DELEGATED = {
    "simulate": "run simulated engines (see `stickyroute simulate --help`)",
    "bench": "replay workloads against routing policies and routers (see `stickyroute bench --help`)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in _DELEGATED:
            return _delegate(arguments[0], arguments[1:])
        flags = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = flags.run
        return command(flags)
    except ConfigError as error:
        return _fail(error.message)
    except BrokenPipeError:
        # Who read our output has seen enough; what is left of it goes nowhere, in silence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _fail(_told(error))
    except KeyboardInterrupt:
        return 130


def _serve(flags: argparse.Namespace) -> int:
    from stickyroute.settings import load_settings

    overrides = _overrides(flags)
    settings = load_settings(flags.config, overrides)
    from stickyroute import app  # after the settings: a mistake in them is told at once
    from stickyroute.live.live import Origin

    return app.run(settings, Origin(flags.config, overrides))


def _check(flags: argparse.Namespace) -> int:
    from stickyroute.settings import effective_yaml, load_settings

    try:
        settings = load_settings(flags.file, _set_values(flags.set))
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(effective_yaml(settings), end="")
    if settings.discovery:
        from stickyroute.live.members import offline_members

        # No mistake of this file's, and it may be mended by the time it is wanted.
        for mistake in offline_members(settings).mistakes:
            print(f"note: {mistake}", file=sys.stderr)
    return 0


def _preview(flags: argparse.Namespace) -> int:
    from stickyroute.settings import load_settings

    values = _set_values(flags.set)
    both = []
    for path in (flags.old, flags.new):
        try:
            both.append(load_settings(path, values))
        except ConfigError as error:
            for line in error.message.splitlines():
                print(line if line.startswith(str(path)) else f"{path}: {line}", file=sys.stderr)
    if len(both) < 2:
        return 1
    from stickyroute.live.preview import offline

    print(offline(*both))
    return 0


def _demo(flags: argparse.Namespace) -> int:
    from stickyroute.benchmark.demo import SECONDS, run_demo

    return run_demo(once=flags.once, seconds=SECONDS if flags.seconds is None else flags.seconds)


def _delegate(command: str, arguments: list[str]) -> int:
    if command == "simulate":
        from stickyroute.simulator.cli import main as simulate

        return simulate(arguments)
    from stickyroute.benchmark.cli import main as bench

    return bench(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stickyroute",
        description="A cache-aware load balancer and reverse proxy for fleets of vLLM and SGLang engines.",
    )
    parser.add_argument("--version", action="version", version=f"stickyroute {version_words()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy until SIGTERM or SIGINT. Flags win over STICKYROUTE_ variables, which win "
        "over the file. Every setting is told in docs/configuration.md.",
    )
    serve.set_defaults(run=_serve)
    serve.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings")
    serve.add_argument(
        "--backend",
        action="append",
        metavar="URL",
        help="an engine, once for each; NAME=URL gives it a name; replaces the file's backends",
    )
    serve.add_argument("--listen", metavar="HOST:PORT", help="the public port (default 0.0.0.0:8080)")
    serve.add_argument("--admin-listen", metavar="HOST:PORT", help="the admin port (default 127.0.0.1:9090)")
    serve.add_argument("--policy", metavar="NAME", help="how a backend is chosen (default sticky)")
    serve.add_argument("--access-log", metavar="FORMAT", help="off, text or json (default off)")
    serve.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (default info)")
    serve.add_argument(
        "--response-headers",
        action="store_true",
        default=None,
        help="tell the backend and the reason in reply headers",
    )
    _add_set(serve)

    check = commands.add_parser(
        "check",
        help="check a configuration file",
        description="Print the settings in force as YAML, secrets masked, and exit 0; or every mistake with "
        "its place in the file, and exit 1.",
    )
    check.set_defaults(run=_check)
    check.add_argument("file", type=Path, metavar="FILE", help="YAML file with the settings")
    _add_set(check)

    preview = commands.add_parser(
        "preview",
        help="what another configuration would change: keys that move, settings that differ",
        description="Compare two configuration files: the share of keys of each backend before and after, and "
        "which settings take effect at once and which at a restart. Needs no running proxy; of a running one "
        "PUT /config?dry_run=1 tells the same. Exit 1 for a file with mistakes.",
    )
    preview.set_defaults(run=_preview)
    preview.add_argument("old", type=Path, metavar="OLD", help="YAML file with the settings in force")
    preview.add_argument("new", type=Path, metavar="NEW", help="YAML file with the settings to come")
    _add_set(preview)

    demo = commands.add_parser(
        "demo",
        help="simulated engines and the proxy in one process: round-robin against sticky",
        description="Start four simulated engines and the proxy, play multi-turn users over real sockets "
        "with round_robin and then sticky, print a table, and stay up for your own requests.",
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--once", action="store_true", help="exit after the table")
    demo.add_argument(
        "--seconds", type=_seconds, metavar="N", help="play each policy for so long, 1 to 600 (default 9)"
    )

    console.add_commands(commands)
    inquiries.add_commands(commands)
    for name, text in _DELEGATED.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _seconds(text: str) -> float:
    """Raises ArgumentTypeError for what is no such number."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"{text}: give seconds from 1 to 600")
    return seconds


def _add_set(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other setting by its path, such as limits.body_bytes=128MiB; may be repeated",
    )


def _overrides(flags: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, nested like the file."""
    values = _set_values(flags.set)
    for key in ("listen", "admin_listen", "policy", "access_log", "log_level", "response_headers"):
        value = getattr(flags, key)
        if value is not None:
            values[key] = value
    if flags.backend is not None:
        values["backends"] = [_backend(text) for text in flags.backend]
    return values


def _backend(text: str) -> dict[str, str]:
    name, equals, url = text.partition("=")
    return {"name": name, "url": url} if equals and "://" not in name else {"url": text}


def _set_values(assignments: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError("--set: write KEY=VALUE, such as limits.body_bytes=128MiB")
        *groups, key = path.split(".")
        target = values
        for group in groups:
            below = target.setdefault(group, {})
            if not isinstance(below, dict):
                raise ConfigError(f"--set {path}: {group} has a value already")
            target = below
        try:
            target[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {path}: the value is not YAML; put it in quotes") from None
    return values


def _told(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def _fail(message: str) -> int:
    lines = message.splitlines() or [""]
    print("\n".join(f"stickyroute: {line}" for line in lines), file=sys.stderr)
    return 2
