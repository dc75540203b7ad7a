"""Parts of the dashboard's state that are made of what others report: a decision, the doctor's findings.

Pure: the reports go in, JSON values for the page and for `top` come out.
"""

from __future__ import annotations

from typing import Any

from stickyroute.http.words import COMPLETE

__all__ = ["decision_row", "diagnosis", "part"]

_FINDINGS = 8
_BAD_SHARE = 0.1


def decision_row(told: dict[str, Any]) -> dict[str, Any]:
    """A line of the stream. `expected` and `achieved` are parts of the prompt, 0 to 1, that were cached."""
    predicted, achieved = told["predicted"], told["achieved"]
    return {
        "id": told["number"],
        "at": told["time"],
        "backend": told["backend"],
        "reason": told["reason"],
        "model": told["model"],
        "expected": None
        if predicted is None
        else part(predicted["cached_tokens"], predicted["prompt_tokens"]),
        "achieved": part(achieved["cached_tokens"], achieved["prompt_tokens"]),
        "ttft_s": achieved["ttft_s"],
        "duration_s": told["duration_s"],
        "about": _about(told),
        "failed": None if told["end"] == COMPLETE and told["status"] < 400 else _failure(told),
    }


def _about(told: dict[str, Any]) -> str:
    """What else there is to say of a decision, for who points at it."""
    key = f"key {told['key']} from {told['key_source']}" if told["key"] else "no key"
    tries = f", {told['attempts']} attempts" if told["attempts"] > 1 else ""
    return f"{told['route']}, request {told['request_id']}, {key}{tries}"


def diagnosis(told: dict[str, Any]) -> dict[str, Any]:
    """The doctor's report as a few cards. `level` is bad from a tenth of follow-ups that break."""
    overlap = told["median_overlap"]
    shared = "" if overlap is None else f", {overlap:.0%} of a prompt began an earlier one"
    findings = [
        {
            "id": f"{row['tenant']}|{row['pool']}|{row['place']}|{row['message']}|{row['kind']}",
            "level": "bad" if (row["share_of_followups"] or 0.0) >= _BAD_SHARE else "warn",
            "title": _headline(row),
            "lost_tokens_per_hour": row["lost_tokens_per_hour"],
            "where": _whereabouts(row),
            "advice": row["advice"],
        }
        for row in told["findings"][:_FINDINGS]
    ]
    return {
        "note": f"{told['conversations']:,} conversations{shared}",
        "findings": findings,
        "rules": [
            f"{rule['figure']} {rule['value']} ({rule['bound']}): {rule['says']}" for rule in told["rules"]
        ],
    }


def _headline(row: dict[str, Any]) -> str:
    kind = str(row["kind"])
    places = {"system": "the system prompt", "tools": "the tools", "message": f"message {row['message']}"}
    where = places.get(row["place"], row["place"])
    return f"{kind[:1].upper()}{kind[1:]} in {where}"


def _whereabouts(row: dict[str, Any]) -> str:
    who = f"tenant {row['tenant']}" if row["tenant"] else "no tenant"
    low, high = row["offset_bytes"]
    at = f"byte {low}" if low == high else f"bytes {low} to {high}"
    share = "" if row["share_of_followups"] is None else f", {row['share_of_followups']:.0%} of follow-ups"
    return f"{who}, {row['pool']}, at {at}; {row['keys']} conversations{share}"


def part(some: float | None, whole: float | None) -> float | None:
    return None if some is None or not whole else round(min(1.0, some / whole), 3)


def _failure(told: dict[str, Any]) -> str:
    return str(told["status"]) if told["end"] == COMPLETE else str(told["end"])
