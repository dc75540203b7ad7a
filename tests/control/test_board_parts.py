"""A decision and the doctor's findings as the dashboard gets them."""

from __future__ import annotations

from typing import Any

import pytest

from stickyroute.control.board_parts import decision_row, diagnosis, part


def told(**other: Any) -> dict[str, Any]:
    """A decision as /decisions tells it."""
    return {
        "number": 7, "time": 100.0, "route": "/v1/chat/completions", "request_id": "9f3c", "key": "00ab", "attempts": 1,
        "key_source": "body:user", "backend": "gpu-1", "reason": "home", "model": "m", "status": 200,
        "end": "complete", "duration_s": 2.0,
        "predicted": {"ttft_s": 0.1, "prompt_tokens": 1000, "cached_tokens": 900},
        "achieved": {"ttft_s": 0.12, "prompt_tokens": 1200, "cached_tokens": 960},
        **other,
    }  # fmt: skip


def test_a_decision_tells_what_was_expected_and_what_came() -> None:
    row = decision_row(told())
    assert (row["id"], row["expected"], row["achieved"], row["ttft_s"], row["failed"]) == (
        7,
        0.9,
        0.8,
        0.12,
        None,
    )


def test_more_of_it_is_there_for_who_points_at_it() -> None:
    assert decision_row(told())["about"] == "/v1/chat/completions, request 9f3c, key 00ab from body:user"
    about = decision_row(told(key=None, key_source=None, attempts=3))["about"]
    assert about == "/v1/chat/completions, request 9f3c, no key, 3 attempts"


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({"end": "upstream_died"}, "upstream_died"),
        ({"end": "client_left"}, "client_left"),
        ({"status": 503}, "503"),
        ({"status": 302}, None),
    ],
)
def test_what_failed_is_said(fields: dict[str, Any], failed: str | None) -> None:
    assert decision_row(told(**fields))["failed"] == failed


def test_what_nobody_knows_stays_unknown() -> None:
    nothing = {"ttft_s": None, "prompt_tokens": None, "cached_tokens": None}
    row = decision_row(told(predicted=None, achieved=nothing))
    assert (row["expected"], row["achieved"], row["ttft_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("some", "whole", "value"),
    [(1.0, 4.0, 0.25), (5.0, 4.0, 1.0), (None, 4.0, None), (1.0, 0, None), (0, 9, 0.0)],
)
def test_a_part_is_between_nothing_and_all(some: float | None, whole: float, value: float | None) -> None:
    assert part(some, whole) == value


def finding(**other: Any) -> dict[str, Any]:
    return {
        "tenant": "acme", "pool": "llama", "place": "system", "message": None, "offset_bytes": [605, 605],
        "kind": "timestamp or date", "breaks": 42, "share_of_followups": 0.2, "keys": 8,
        "lost_tokens_per_hour": 4_877_334, "advice": "Take the clock out.", **other,
    }  # fmt: skip


def report(*findings: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"conversations": 1204, "median_overlap": 0.71, "findings": list(findings), "rules": [], **other}


def test_a_finding_is_a_card() -> None:
    shown = diagnosis(report(finding()))
    assert shown["note"] == "1,204 conversations, 71% of a prompt began an earlier one"
    (card,) = shown["findings"]
    assert card["title"] == "Timestamp or date in the system prompt"
    assert card["where"] == "tenant acme, llama, at byte 605; 8 conversations, 20% of follow-ups"
    assert (card["level"], card["lost_tokens_per_hour"]) == ("bad", 4_877_334)


def test_other_findings_and_rules() -> None:
    small = finding(
        tenant=None,
        place="message",
        message=3,
        offset_bytes=[5, 90],
        share_of_followups=None,
        kind="whitespace",
    )
    rule = {"figure": "overlap", "value": 0.71, "bound": "> 0.4", "says": "Try SGLang."}
    shown = diagnosis(report(small, finding(place="tools"), rules=[rule], median_overlap=None))
    assert shown["note"] == "1,204 conversations"
    assert shown["rules"] == ["overlap 0.71 (> 0.4): Try SGLang."]
    first, second = shown["findings"]
    assert (first["title"], first["level"]) == ("Whitespace in message 3", "warn")
    assert first["where"] == "no tenant, llama, at bytes 5 to 90; 8 conversations"
    assert second["title"] == "Timestamp or date in the tools"
    assert first["id"] != second["id"]


def test_only_the_worst_are_shown() -> None:
    shown = diagnosis(report(*(finding(message=number) for number in range(30))))
    assert len(shown["findings"]) == 8
