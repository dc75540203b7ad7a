"""Memory by who allocated it: pytest's own threads allocate too, whenever they like."""

from __future__ import annotations

import tracemalloc
from types import ModuleType


def traced_bytes(module: ModuleType) -> int:
    """What the lines of `module` have allocated since `tracemalloc` began, and not freed."""
    mine = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__ or "")])
    return sum(found.size for found in mine.statistics("filename"))
