"""Where backends are found that the configuration does not name: a watched file, DNS, Kubernetes.

Owns the shape of `discovery` and what each kind needs. Looks for nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from stickyroute import defaults
from stickyroute.settings.addresses import parse_backend_url
from stickyroute.settings.checks import (
    Count,
    HostPort,
    Key,
    Models,
    Problem,
    Problems,
    ReadableFile,
    WholeNumber,
)
from stickyroute.settings.groups import Group

__all__ = ["DiscoverySettings"]

# What each kind goes by; anything else that it was given would be ignored in silence.
_OWN = {
    "file": ("path",),
    "dns": ("host", "record", "port", "resolver", "scheme", "base_path"),
    "kubernetes": ("service", "selector", "namespace", "kubeconfig", "port", "scheme", "base_path"),
}


def _base_path(value: str) -> str:
    return parse_backend_url(f"http://host{value if value.startswith('/') else '/' + value}").base_path


class DiscoverySettings(Group):
    """One place where backends are found."""

    kind: Literal["file", "dns", "kubernetes"] = Field(
        description="file (a watched YAML or JSON list), dns (A, AAAA or SRV), kubernetes (ready endpoints). Required."
    )
    path: Path | None = Field(
        default=None,
        description="file: a list of backends as under `backends`, read again when it changes. Default: none.",
    )
    host: str | None = Field(
        default=None, min_length=1, description="dns: the name that is looked up. Default: none."
    )
    record: Literal["address", "A", "AAAA", "SRV"] = Field(
        default="address",
        description="dns: what is asked for; address takes A, and AAAA where there is none. SRV tells ports, and "
        "names that stay.",
    )
    resolver: HostPort | None = Field(
        default=None, description="dns: HOST:PORT of the server that is asked. Default: the system's."
    )
    service: str | None = Field(
        default=None,
        min_length=1,
        description="kubernetes: the Service whose endpoints are the backends. Default: none.",
    )
    selector: str | None = Field(
        default=None,
        min_length=1,
        description="kubernetes: a label selector of pods, such as app=vllm, instead of a Service. Default: none.",
    )
    namespace: str | None = Field(
        default=None, min_length=1, description="kubernetes: where they live. Default: where this pod runs."
    )
    kubeconfig: ReadableFile | None = Field(
        default=None,
        description="kubernetes: how the API is reached. Default: the service account, else the user's own file.",
    )
    port: Annotated[WholeNumber, Field(ge=1, le=65535)] | str | None = Field(
        default=None,
        description="dns, kubernetes: the engines' port; in Kubernetes also its name. Default: the only one there "
        "is; for addresses 80 or 443.",
    )
    scheme: Literal["http", "https"] = Field(default="http", description="How the engines are spoken to.")
    base_path: Annotated[str, AfterValidator(_base_path)] = Field(
        default="", description="A path put before each request's."
    )
    weight: WholeNumber = Field(
        default=defaults.BACKEND_WEIGHT, ge=0, le=100, description="The weight of each backend found here."
    )
    api_key: Key | None = Field(default=None, description="The engines' key. Default: none.")
    ca: ReadableFile | None = Field(
        default=None, description="PEM file of the authorities to trust for https. Default: the system's."
    )
    tls_verify: bool = Field(default=True, description="Whether to check certificates.")
    models: Models | None = Field(
        default=None, description="The models they serve. Default: what each one's /v1/models says."
    )
    max_in_flight: Count | None = Field(
        default=None, description="Requests each may have at once. Default: no limit."
    )
    on_empty: Literal["keep", "drop"] = Field(
        default="keep",
        description="What an answer without any backend means: keep (the last ones stay) or drop (none is left).",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> DiscoverySettings:
        problems = list(self._problems())
        if problems:
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[Problem]:
        kind = self.kind
        for other, names in _OWN.items():
            for name in names:
                default = type(self).model_fields[name].default  # which `GET /config` shows of every kind
                if other != kind and name not in _OWN[kind] and getattr(self, name) != default:
                    yield Problem((name,), f"is for {other}, not for {kind}; leave it out")
        if kind == "file" and self.path is None:
            yield Problem(("path",), "is missing; name the file with the list of backends")
        if kind == "dns" and self.host is None:
            yield Problem(("host",), "is missing; give the name to look up")
        if kind == "dns" and isinstance(self.port, str):
            yield Problem(("port",), "must be a whole number; only Kubernetes has names for ports")
        if kind == "kubernetes" and (self.service is None) == (self.selector is None):
            yield Problem(("service",), "give either service (its endpoints) or selector (pods by label)")

    @property
    def label(self) -> str:
        """What it is called in logs, in /fleet and in metrics."""
        if self.kind == "file":
            return f"file:{self.path}"
        port = f":{self.port}" if self.port is not None else ""
        if self.kind == "dns":
            record = f"/{self.record}" if self.record != "address" else ""
            return f"dns:{self.host}{port}{record}"
        place = f"{self.namespace}/" if self.namespace else ""
        return f"kubernetes:{place}{self.service or self.selector}{port}"
