"""Limits of the data plane, as plain numbers; the composition root fills them from the settings."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Limits:
    """Sizes in bytes, times in seconds; None is no limit. Meanings and defaults: `settings`.

    One object for the whole data plane: new values go into it, and hold for every connection there is.
    """

    body_bytes: int
    head_bytes: int
    max_connections: int | None
    pipelined: int
    connect_s: float
    response_header_s: float | None
    stream_idle_s: float
    client_head_s: float
    client_body_s: float
    client_idle_s: float
    client_write_s: float
    upstream_idle_s: float

    @property
    def tick_s(self) -> float:
        """How often limits must be looked at: a quarter of the shortest, between 20 ms and 1 s."""
        shortest = min(
            self.stream_idle_s,
            self.client_head_s,
            self.client_body_s,
            self.client_idle_s,
            self.client_write_s,
            self.upstream_idle_s,
            self.response_header_s or self.stream_idle_s,
        )
        return min(1.0, max(0.02, shortest / 4))

    def become(self, other: Limits) -> None:
        """Have the values of `other` from now on."""
        for field in fields(self):
            setattr(self, field.name, getattr(other, field.name))
