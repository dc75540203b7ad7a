"""The configuration as frozen values: one YAML file, STICKYROUTE_ variables and flags, checked at the start.

A value comes from flags, else from the environment, else from the file, else from `stickyroute.defaults`.
Knows nothing of who uses a setting.
"""

from stickyroute.settings.addresses import Address, BackendUrl, parse_backend_url, split_host_port
from stickyroute.settings.discovery import DiscoverySettings
from stickyroute.settings.groups import (
    AffinitySettings,
    BackendSettings,
    BoundedRingSettings,
    CorsSettings,
    GatewayKey,
    LimitSettings,
    RetrySettings,
    RingSettings,
    TimeoutSettings,
    TlsSettings,
)
from stickyroute.settings.load import effective_yaml, load_settings, load_text, read_backends
from stickyroute.settings.model import Settings

__all__ = [
    "Address",
    "AffinitySettings",
    "BackendSettings",
    "BackendUrl",
    "BoundedRingSettings",
    "CorsSettings",
    "DiscoverySettings",
    "GatewayKey",
    "LimitSettings",
    "RetrySettings",
    "RingSettings",
    "Settings",
    "TimeoutSettings",
    "TlsSettings",
    "effective_yaml",
    "load_settings",
    "load_text",
    "parse_backend_url",
    "read_backends",
    "split_host_port",
]
