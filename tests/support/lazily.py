"""A module that is loaded when a test first uses it.

Every worker of the suite collects every file, and the clients of the two APIs take seconds to load: only the worker
that talks through them should pay for that. (pytest looks at whatever stands in a test's own module, which would load
it: keep such a module in a module of helpers.)
"""

from __future__ import annotations

import importlib
from typing import Any


class _Later:
    """Stands for a module. (`importlib.util.LazyLoader` loads as soon as `inspect` walks through `sys.modules`.)"""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazily(name: str) -> Any:
    """The module of that name. ModuleNotFoundError, where it isn't installed, comes at its first use."""
    return _Later(name)
