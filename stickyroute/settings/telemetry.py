"""What is read out of replies, what it is worth, and where traces go.

Owns the shape of `usage`, `prices` and `tracing`. Counts and sends nothing itself.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from stickyroute import defaults
from stickyroute.settings.addresses import parse_backend_url
from stickyroute.settings.checks import Count, Number
from stickyroute.settings.groups import Group

__all__ = ["PriceSettings", "TracingSettings", "UsageSettings"]

Price = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]


def _http_url(value: str) -> str:
    parse_backend_url(value)
    return value


class UsageSettings(Group):
    """What replies tell of their tokens."""

    read: bool = Field(
        default=True,
        description="Whether first tokens and usage are read out of replies, for metrics, logs and what is learned. "
        "Policies that look at what is cached read them in any case.",
    )
    ask: bool = Field(
        default=False,
        description="Whether streams are asked for their usage where the client did not: the request gets "
        "stream_options.include_usage, and the event that follows from it is taken out of the reply again.",
    )


class PriceSettings(Group):
    """What prompt tokens cost, to tell what the cache saves."""

    input_per_million: dict[str, Price] = Field(
        default={},
        description="Model to price of a million prompt tokens, in any currency; '*' is every other model. "
        "Default: none, and no money is counted.",
    )
    cache_read: Price = Field(
        default=defaults.PRICE_CACHE_READ,
        description="Price of a cached prompt token, times that of another.",
    )
    cache_write: Price = Field(
        default=defaults.PRICE_CACHE_WRITE,
        description="Price of a prompt token that the engine says it newly cached, times that of another.",
    )


class TracingSettings(Group):
    """OpenTelemetry traces, with `pip install 'stickyroute[tracing]'`."""

    enabled: bool = Field(
        default=False,
        description="Whether each request is a trace (or part of the client's) with spans for decision, attempts "
        "and stream.",
    )
    endpoint: Annotated[str, AfterValidator(_http_url)] | None = Field(
        default=None,
        description="Where they are sent by OTLP over HTTP, the whole URL (http://collector:4318/v1/traces). "
        "Default: what OTEL_EXPORTER_OTLP_ENDPOINT and its kin say.",
    )
    sample: Share = Field(
        default=defaults.TRACING_SAMPLE,
        description="Share of the requests that begin a trace, 0 to 1; a client's own trace is continued as its "
        "traceparent says.",
    )
    queue: Count = Field(
        default=defaults.TRACING_QUEUE,
        description="Spans that may wait to be sent; past it they are dropped and counted.",
    )
