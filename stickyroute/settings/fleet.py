"""When a backend gets no requests, and how many of its share while it is full or has just come.

Owns the shape of these groups. Values are frozen.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from stickyroute import defaults
from stickyroute.settings.checks import Count, Number, Seconds
from stickyroute.settings.groups import Group

__all__ = ["HealthSettings", "RoomSettings"]

Share = Annotated[Number, Field(gt=0, le=1)]


class HealthSettings(Group):
    """When a backend is out, by its probes and by real traffic, and how it comes back."""

    rise: Count = Field(default=defaults.HEALTH_RISE, description="Good probes in a row that bring it back.")
    fall: Count = Field(default=defaults.HEALTH_FALL, description="Failed probes in a row that take it out.")
    eject_after: Count = Field(
        default=defaults.HEALTH_EJECT_AFTER,
        description="Requests in a row that end in a reset or a 5xx (not 503), and so eject it.",
    )
    silent_after: Count = Field(
        default=defaults.HEALTH_SILENT_AFTER,
        description="Requests in a row without a first byte that eject it, though its probes are good.",
    )
    eject_first_s: Seconds = Field(
        default=defaults.HEALTH_EJECT_FIRST_S,
        description="The first pause of one that is ejected; it doubles each time, with jitter.",
    )
    eject_last_s: Seconds = Field(default=defaults.HEALTH_EJECT_LAST_S, description="The longest pause.")
    recover: Count = Field(
        default=defaults.HEALTH_RECOVER,
        description="After the pause it gets one request at a time, until so many were answered.",
    )
    panic: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=defaults.HEALTH_PANIC,
        description="With less than this share of a model's backends left, ejected ones are used again; 0 to 1.",
    )


class RoomSettings(Group):
    """How a backend's part of the load shrinks while its cache is full or requests wait, and while it is new."""

    kv_mark: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=defaults.ROOM_KV_MARK,
        description="KV utilization, 0 to 1, from which on it gets less than its share.",
    )
    waiting_mark: Annotated[Number, Field(ge=0)] = Field(
        default=defaults.ROOM_WAITING_MARK,
        description="The same for requests that wait, for each of the engine's ranks.",
    )
    waiting_full: Annotated[Number, Field(gt=0)] = Field(
        default=defaults.ROOM_WAITING_FULL, description="With so many waiting it gets the least."
    )
    floor: Share = Field(default=defaults.ROOM_FLOOR, description="The least, as a part of its share.")
    cool_down_s: Annotated[Number, Field(ge=0)] = Field(
        default=defaults.ROOM_COOL_DOWN_S, description="How long its part stays small once it shrank."
    )
    slow_start_s: Annotated[Number, Field(ge=0)] = Field(
        default=defaults.ROOM_SLOW_START_S,
        description="How long one that comes, or comes back, takes to get its whole share; 0 is none.",
    )

    @model_validator(mode="after")
    def _marks_in_order(self) -> RoomSettings:
        if self.waiting_full <= self.waiting_mark:
            raise ValueError("waiting_full must be more than waiting_mark")
        return self
