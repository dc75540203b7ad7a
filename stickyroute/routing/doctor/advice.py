"""What to do about what the doctor found, in words; and the rules of thumb of people who run engines.

Owns the texts and the thresholds. Pure: figures come in.
"""

from __future__ import annotations

from typing import Any, Final

from stickyroute.openai.segments import SYSTEM, TOOLS
from stickyroute.routing.doctor.compare import (
    CHANGED_TOOLS,
    EDITED_SYSTEM,
    ID,
    JSON_KEYS,
    OTHER,
    REORDERED,
    REORDERED_TOOLS,
    REWRITTEN,
    TIME,
    TRUNCATED,
    WHITESPACE,
)

__all__ = ["ADVICE", "BENCHMARK_SGLANG", "BROKEN_PROMPT", "KV_FULL", "advice", "rules"]

BENCHMARK_SGLANG: Final = 0.4
"""Median prefix overlap above which SGLang's radix cache is worth a benchmark against vLLM."""
BROKEN_PROMPT: Final = 0.3
"""Hit rate under which the prompt is broken, not the hardware."""
KV_FULL: Final = 0.8
"""Share of the KV cache in use above which engines evict, preempt, and first tokens come late."""
_EVIDENCE_TOKENS: Final = 10_000  # of prompts, before a hit rate says anything

ADVICE: Final = {
    TIME: "Take the clock out of {place}, or move it behind everything that stays: into the newest user message. If "
    "the model only needs the day, send the date, not the second.",
    ID: "Take the request id, session id or counter out of {place}; send it as a header (x-session-id) or in "
    "`metadata`, which no engine renders.",
    WHITESPACE: "The same text comes with other blanks or line ends (CRLF, trailing spaces, indentation). Build "
    "{place} from one template, and store messages as they were sent.",
    JSON_KEYS: "Serialize the JSON in {place} with sorted keys (json.dumps(..., sort_keys=True)), and always by the "
    "same library: engines render keys in the order they come.",
    REORDERED_TOOLS: "Send the tools in one fixed order, sorted by name for example. Sets and maps, and tools that are "
    "found by discovery, come in another order each time.",
    CHANGED_TOOLS: "Tools stand in front of everything, so each one that comes or goes makes the whole conversation "
    "new. Send all of them from the first turn on, and limit them with tool_choice instead.",
    REORDERED: "The same lines come in another order, as retrieved documents do. Sort them, by id for example, or put "
    "them behind the conversation.",
    TRUNCATED: "The oldest messages are dropped to fit the context, so all the others move. Drop many at once and "
    "seldom (half of the history when it is full), not one with every turn.",
    EDITED_SYSTEM: "The system prompt was changed while conversations went on. If that was a release, it passes. If it "
    "keeps coming, something in it is made anew for each request: move that to the newest message.",
    REWRITTEN: "Messages that were sent once come back changed: shortened, summarized, without their reasoning. Append "
    "only, and summarize seldom.",
    OTHER: "What is rendered in front of the messages changes from turn to turn. Keep it as it is for a whole "
    "conversation.",
}
"""What to do, by kind; `{place}` is where."""


def advice(place: str, kind: str) -> str:
    """What the client's developer can do."""
    where = {TOOLS: "the tools", SYSTEM: "the system prompt"}.get(place, "the earlier messages")
    return ADVICE.get(kind, ADVICE[OTHER]).format(place=where)


def rules(
    median_overlap: float | None,
    hit_rate: float | None,
    prompt_tokens: float,
    kv_used: float | None,
    found: bool,
) -> list[dict[str, Any]]:
    """The rules of thumb that apply, as JSON values. None is unknown; `kv_used` is that of the fullest backend."""
    told = []
    if median_overlap is not None and median_overlap > BENCHMARK_SGLANG:
        told.append(
            _rule(
                "overlap", median_overlap, f"> {BENCHMARK_SGLANG}",
                "Half of the prompts repeat that much of an earlier one: benchmark SGLang (radix cache) against vLLM "
                "on this traffic.",
            )
        )  # fmt: skip
    if hit_rate is not None and prompt_tokens >= _EVIDENCE_TOKENS and hit_rate < BROKEN_PROMPT:
        why = (
            "the findings above say where."
            if found
            else "or nothing in it repeats: then more GPUs or another router will not help either."
        )
        told.append(
            _rule(
                "hit_rate", hit_rate, f"< {BROKEN_PROMPT}",
                "Engines find less than a third of the prompt tokens in their caches: the prompt is broken, not the "
                f"hardware; {why}",
            )
        )  # fmt: skip
    if kv_used is not None and kv_used > KV_FULL:
        told.append(
            _rule(
                "kv_used", kv_used, f"> {KV_FULL}",
                "A KV cache is nearly full, so prefixes are evicted and requests preempted: size up (more memory or "
                "GPUs, fp8 KV), or a smaller decode batch (--max-num-seqs; SGLang: --max-running-requests). "
                "`stickyroute kv` tells what fits.",
            )
        )  # fmt: skip
    return told


def _rule(name: str, value: float, bound: str, text: str) -> dict[str, Any]:
    return {"figure": name, "value": round(value, 3), "bound": bound, "says": text}
