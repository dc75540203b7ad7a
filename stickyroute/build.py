"""Which build runs: the hot modules compiled into extension modules (hatch_build.py), or the sources as they are."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

from stickyroute import __version__

__all__ = ["compiled", "version_words"]

_ONE = "stickyroute.routing.index"  # one of those that are compiled; all are, or none


def compiled() -> bool:
    """Whether Python found the compiled modules. Imports nothing."""
    spec = find_spec(_ONE)
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def version_words() -> str:
    """The version, and how it was built, as a person reads it: "0.1.0 (compiled)"."""
    return f"{__version__} ({'compiled' if compiled() else 'interpreted'})"
