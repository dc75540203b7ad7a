"""The workloads, one file each, by name. See `base` for what they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stickyroute.benchmark.workloads.agentic import Agentic
from stickyroute.benchmark.workloads.azure import Azure
from stickyroute.benchmark.workloads.base import Request, Workload
from stickyroute.benchmark.workloads.chat import Chat, ChatWithoutIds
from stickyroute.benchmark.workloads.clock import Clock
from stickyroute.benchmark.workloads.coding_sessions import CodingSessions
from stickyroute.benchmark.workloads.mooncake import Mooncake
from stickyroute.benchmark.workloads.no_overlap import NoOverlap
from stickyroute.benchmark.workloads.one_prompt import OnePrompt
from stickyroute.benchmark.workloads.rag import Rag
from stickyroute.benchmark.workloads.shared_prefixes import SharedPrefixes
from stickyroute.benchmark.workloads.sharegpt import ShareGpt
from stickyroute.benchmark.workloads.window import Window

__all__ = ["WORKLOADS", "Request", "Workload", "make_workload"]

WORKLOADS: dict[str, Any] = {
    workload.name: workload
    for workload in (
        Chat,
        ChatWithoutIds,
        Agentic,
        Rag,
        SharedPrefixes,
        OnePrompt,
        NoOverlap,
        Clock,
        Window,
        Mooncake,
        CodingSessions,
        Azure,
        ShareGpt,
    )
}


def make_workload(name: str, parameters: Mapping[str, Any]) -> Workload:
    """The workload called `name`. Raises ValueError for a name or parameter that does not exist."""
    if name not in WORKLOADS:
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    kind = WORKLOADS[name]
    known = [field.name for field in fields(kind)]
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise ValueError(f"workload {name} has no {', '.join(unknown)}; it has {', '.join(known)}")
    if "path" in known and not parameters.get("path"):
        raise ValueError(f"workload {name} reads a trace: give its path")
    values = {key: _frozen(value) for key, value in parameters.items()}
    workload: Workload = kind(**values)
    return workload


def _frozen(value: Any) -> Any:
    """Lists, as YAML gives them, become tuples."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
