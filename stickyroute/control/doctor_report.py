"""The doctor's report: as JSON values and as text, for the admin port and for the command line alike.

Owns its form. What was found is `routing.doctor`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from stickyroute.routing.doctor import Doctor
from stickyroute.routing.doctor.advice import advice, rules

__all__ = ["as_text", "report"]

_WIDTH = 100
_TOLD = 20  # findings in the text


def report(
    doctor: Doctor,
    now_s: float,
    *,
    hit_rate: float | None = None,
    prompt_tokens: float = 0.0,
    kv_used: float | None = None,
    samples: bool = False,
    timed: bool = True,
) -> dict[str, Any]:
    """Everything that was found. Without `timed` there is no clock in what was read, so no rate either."""
    findings = doctor.findings
    found = findings.told(now_s, samples)
    for row in found:
        row["advice"] = advice(row["place"], row["kind"])
        if not timed:
            row["lost_tokens_per_hour"] = row["last_seen_s"] = None
    overlap = findings.median_overlap()
    if hit_rate is None and not prompt_tokens:
        prompt_tokens = findings.tokens
    return {
        "since_s": round(now_s - findings.began_s, 1) if timed else None,
        "requests": round(findings.requests),
        "conversations": doctor.keys,
        "median_overlap": overlap,
        "hit_rate": None if hit_rate is None else round(hit_rate, 4),
        "kv_used": None if kv_used is None else round(kv_used, 4),
        "findings": found,
        "rules": rules(overlap, hit_rate, prompt_tokens, kv_used, bool(found)),
        "tenants": [
            {
                "tenant": tenant or None,
                "pool": pool,
                "requests": round(group.requests),
                "followups": round(group.compared),
                "broken": round(group.broken),
            }
            for (tenant, pool), group in sorted(findings.groups.items(), key=lambda item: -item[1].requests)[
                :50
            ]
        ],
    }


def as_text(told: Mapping[str, Any]) -> str:
    """The report for a person."""
    about = [f"{_many(told['requests'], 'request')} of {_many(told['conversations'], 'conversation')}"]
    if told["since_s"] is not None:
        about.append(f"in {told['since_s'] / 60:.1f} minutes")
    if told.get("watched", 1) > 1:
        about.append(f"(one conversation in {told['watched']})")
    lines = [" ".join(about)]
    for name, text in (
        ("median_overlap", "of a prompt, in the median, began an earlier one"),
        ("hit_rate", "of prompt tokens were cached, say the engines"),
        ("kv_used", "of the fullest KV cache is in use"),
    ):
        if told[name] is not None:
            lines.append(f"{told[name]:6.0%} {text}")
    findings = [
        row for row in told["findings"] if row["lost_tokens_per_hour"] != 0
    ]  # what is over is in the JSON
    if told.get("enabled") is False:
        lines += ["", "The doctor is off (doctor.enabled)."]
    elif not findings:
        lines += ["", "Nothing breaks a prefix."]
    for number, row in enumerate(findings[:_TOLD], 1):
        lines += ["", *_finding(number, row)]
    if len(findings) > _TOLD:
        lines += ["", f"... and {len(findings) - _TOLD} more, smaller ones."]
    for rule in told["rules"]:
        first, *rest = wrap(f"{rule['figure']} {rule['value']} {rule['bound']}: {rule['says']}", _WIDTH - 2)
        lines += ["", f"! {first}", *(f"  {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def _many(count: float, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _finding(number: int, row: Mapping[str, Any]) -> list[str]:
    who = f"tenant {row['tenant']}" if row["tenant"] else "requests without a tenant"
    places = {
        "tools": "the tools",
        "system": "the system prompt",
        "template": "what changes the template",
        "message": f"message {row['message']}",
    }
    where = places.get(row["place"], row["place"])
    low, high = row["offset_bytes"]
    offset = f"byte {low}" if low == high else f"bytes {low} to {high}"
    lost = (
        f"{row['lost_tokens']:,} tokens lost"
        if row["lost_tokens_per_hour"] is None
        else f"{row['lost_tokens_per_hour']:,} tokens lost per hour"
    )
    share = "" if row["share_of_followups"] is None else f", {row['share_of_followups']:.0%} of follow-ups"
    lines = [
        f"{number}. {who}, pool {row['pool']}: {row['kind']} in {where}, at {offset}",
        f"   {lost}; {_many(row['breaks'], 'break')}{share}, {_many(row['keys'], 'conversation')}",
    ]
    if row.get("example_keys") and not row["tenant"]:
        lines.append(f"   keys such as {', '.join(row['example_keys'])}, as in the access log")
    lines += [f"   {line}" for line in wrap(row["advice"], _WIDTH - 3)]
    lines += [f"   sample: {sample!r}" for sample in row.get("samples", ())]
    return lines
