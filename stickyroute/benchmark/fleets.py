"""The simulated fleets that workloads are run on: a profile of an engine, and how many.

Owns the profile that published router benchmarks are compared with; the simulator has the others. Knows no
workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from stickyroute.simulator.profiles import PROFILES, Profile
from stickyroute.simulator.timing import StepTime

QWEN3_32B_TP2_H100: Final = Profile(
    name="h100x2-qwen3-32b",
    # What llm-d published of Qwen3-32B on two H100 under tensor parallelism: 8,192 tokens of prefill in
    # 0.40 s, 11 ms between tokens when idle, 26 to 29 ms at 10,000 tokens a second over eight engines,
    # 307,328 tokens of KV.
    time=StepTime(
        base_s=10.5e-3,
        prefill_token_s=46e-6,
        decode_sequence_s=60e-6,
        prefill_attention_s=0.4e-9,
        decode_attention_s=0.045e-6,  # 128 KiB of KV a token and GPU, at 2.9 TB/s
    ),
    blocks=19_208,
    batched_tokens=8192,
    sequences=256,
    context_tokens=131_072,
)

FLEET_PROFILES: Final[dict[str, Profile]] = {**PROFILES, QWEN3_32B_TP2_H100.name: QWEN3_32B_TP2_H100}

GPUS_PER_ENGINE: Final = {QWEN3_32B_TP2_H100.name: 2}
"""GPUs of one engine, where it is not one."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """`engines` alike. `blocks` overrides the profile's cache."""

    profile: Profile = QWEN3_32B_TP2_H100
    engines: int = 8

    @property
    def gpus_per_engine(self) -> int:
        return GPUS_PER_ENGINE.get(self.profile.name, 1)

    @classmethod
    def of(cls, values: dict[str, Any]) -> FleetSpec:
        """From a scenario: {profile: NAME, engines: N, and any field of Profile but its time}.

        Raises ValueError for a name or a field that does not exist.
        """
        left = dict(values)
        name = left.pop("profile", QWEN3_32B_TP2_H100.name)
        if name not in FLEET_PROFILES:
            raise ValueError(f"unknown profile {name!r}; known: {', '.join(sorted(FLEET_PROFILES))}")
        engines = int(left.pop("engines", 8))
        try:
            return cls(replace(FLEET_PROFILES[name], **left), engines)
        except TypeError as error:
            raise ValueError(f"fleet: {error}") from None
