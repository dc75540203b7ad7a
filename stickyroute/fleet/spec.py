"""What the configuration says of a backend. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Backend", "BackendSpec"]


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One engine server. `name` is what stands on the ring: whoever keeps it may change the address.

    `base_path` is empty or a path prefix; `weight` a whole number, 0 for no keys; `models` None for "ask it";
    `max_in_flight` (requests) None for no limit; `engine` is vllm, sglang or llamacpp, None for "see what it says".
    `api_key` is a secret and never part of the repr.
    """

    name: str
    scheme: str
    host: str
    port: int
    base_path: str = ""
    weight: int = 1
    api_key: str | None = field(default=None, repr=False)
    ca: str | None = None
    tls_verify: bool = True
    models: tuple[str, ...] | None = None
    max_in_flight: int | None = None
    engine: str | None = None

    @property
    def url(self) -> str:
        """The base URL, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base_path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of this fleet. `slot` is its index in every flat array."""

    slot: int
    spec: BackendSpec

    @property
    def name(self) -> str:
        return self.spec.name
