"""Who is in the fleet: the backends of the configuration, then those that discovery finds, each name and address once.

Owns which of two goes first, and the words for the other. Keeps, starts and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stickyroute.errors import ConfigError
from stickyroute.fleet import BackendSpec
from stickyroute.live.build import backend_specs
from stickyroute.settings import Settings
from stickyroute.watch.discovery import Found, found_in_file

__all__ = ["LeftOut", "Members", "Offline", "members_of", "offline_members"]

_CONFIGURATION = "the configuration"


class LeftOut(NamedTuple):
    """A backend that a source finds and the fleet does not take; `why` is the end of a sentence about it."""

    source: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Members:
    """`draining`: the names of those that are being ended. `left_out`: whose name or address another has."""

    specs: list[BackendSpec]
    draining: frozenset[str]
    left_out: tuple[LeftOut, ...]


def members_of(settings: Settings, found: Sequence[Found], is_here: Callable[[str], bool]) -> Members:
    """All backends there are, those of the configuration first; `is_here` tells who is in the fleet already, by name.

    Who is being ended and was never here has nothing to finish, and no user need move for it.
    """
    specs = backend_specs(settings)
    by_name = {spec.name: _CONFIGURATION for spec in specs}
    by_address = {_address(spec): (spec.name, _CONFIGURATION) for spec in specs}
    draining: set[str] = set()
    left_out: list[LeftOut] = []
    for spec, is_draining, source in found:
        if spec.name in by_name:
            why = f"{by_name[spec.name]} has one of that name"
        elif _address(spec) in by_address:
            name, owner = by_address[_address(spec)]
            why = f"{owner} has {spec.url} as {name}"
        elif is_draining and not is_here(spec.name):
            continue
        else:
            by_name[spec.name] = source
            by_address[_address(spec)] = spec.name, source
            specs.append(spec)
            if is_draining:
                draining.add(spec.name)
            continue
        left_out.append(LeftOut(source, spec.name, why))
    return Members(specs, frozenset(draining), tuple(left_out))


@dataclass(frozen=True, slots=True)
class Offline:
    """What can be known of the members without a running process. `mistakes` are sentences about what a start would
    leave out; `listed` how many backends each file of discovery has now, `unasked` the sources that are no file."""

    specs: list[BackendSpec]
    mistakes: tuple[str, ...]
    listed: dict[str, int]
    unasked: tuple[str, ...]

    def notes(self, ask: str) -> list[str]:
        """Sentences about all that discovery adds; `ask` says how to hear of the backends that are not known here."""
        told = [f"Backends read from {label} as it is now: {count}." for label, count in self.listed.items()]
        told += self.mistakes
        if self.unasked:
            told.append(f"Backends that {', '.join(self.unasked)} finds are not known here: {ask}.")
        return told


def offline_members(settings: Settings) -> Offline:
    """Those of the configuration and of the files of discovery, read as they are now; DNS and Kubernetes are not
    asked."""
    found: list[Found] = []
    mistakes: list[str] = []
    listed: dict[str, int] = {}
    for entry in settings.discovery:
        if entry.path is None:
            continue
        try:
            in_file = found_in_file(entry)
        except ConfigError as error:
            mistakes += [f"{entry.label} has no backends now: {line}" for line in error.message.splitlines()]
        else:
            found += in_file
            listed[entry.label] = len(in_file)
    members = members_of(settings, found, lambda name: False)
    mistakes += [f"Backend {one.name} of {one.source} is left out: {one.why}." for one in members.left_out]
    unasked = tuple(entry.label for entry in settings.discovery if entry.path is None)
    return Offline(members.specs, tuple(mistakes), listed, unasked)


def _address(spec: BackendSpec) -> tuple[str, int, str]:
    return spec.host, spec.port, spec.base_path.rstrip("/")
