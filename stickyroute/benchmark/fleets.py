"""The simulated fleets that workloads are run on: a profile of an engine, and how many.

The default is the fleet that published router benchmarks are compared with. Owns no profile (the simulator
does) and knows no workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stickyroute.simulator.profiles import H100_QWEN3_32B, PROFILES, Profile


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """`engines` alike. `blocks` overrides the profile's cache."""

    profile: Profile = H100_QWEN3_32B
    engines: int = 8

    @classmethod
    def of(cls, values: dict[str, Any]) -> FleetSpec:
        """From a scenario: {profile: NAME, engines: N, and any field of Profile but its time}.

        Raises ValueError for a name or a field that does not exist.
        """
        left = dict(values)
        name = left.pop("profile", H100_QWEN3_32B.name)
        if name not in PROFILES:
            raise ValueError(f"unknown profile {name!r}; known: {', '.join(sorted(PROFILES))}")
        engines = int(left.pop("engines", 8))
        try:
            return cls(replace(PROFILES[name], **left), engines)
        except TypeError as error:
            raise ValueError(f"fleet: {error}") from None
