"""Memory by who allocated it: pytest's own threads allocate too, whenever they like."""

from __future__ import annotations

import tracemalloc
from types import ModuleType


def traced_bytes(*modules: ModuleType) -> int:
    """What the lines of `modules` have allocated since `tracemalloc` began, and not freed. What a compiled module
    allocates counts for the line that called it."""
    mine = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, module.__file__ or "") for module in modules]
    )
    return sum(found.size for found in mine.statistics("filename"))
