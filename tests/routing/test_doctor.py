"""The prefix doctor: each way to break a prefix by its place and kind, and what is no break at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest

from stickyroute.openai.routes import Shape
from tests.routing.patients import NOON, SYSTEM, TOOLS, Body, Patient, body, later, shuffled, talk

# No break.


def test_a_conversation_that_only_grows_is_well() -> None:
    patient = Patient()
    for turns in range(1, 12):
        assert patient.see(body(talk(turns), tools=TOOLS)) is None
    assert patient.found == []
    assert patient.doctor.findings.median_overlap() > 0.8


def test_sent_again_or_cut_back_is_well() -> None:
    patient = Patient()
    for turns in (4, 4, 3, 4):
        assert patient.see(body(talk(turns))) is None


def test_another_question_in_place_of_the_last_is_well() -> None:
    patient = Patient()
    for text in ("And what of wheat?", "Or tell me of spelt and its uses, if you would."):
        assert patient.see(body([*talk(3)[:-1], {"role": "user", "content": text}])) is None


def test_a_new_conversation_of_the_same_user_is_well() -> None:
    patient = Patient()
    for about in ("rye", "wheat", "spelt", "barley", "rye"):
        for turns in (1, 2, 3):
            assert patient.see(body(talk(turns, about=about))) is None


def test_other_data_in_the_same_form_is_well() -> None:
    patient, rand = Patient(), Random(3)
    for _ in range(4):
        table = "\n".join(f"{rand.randrange(10**6)},{rand.randrange(10**6)}" for _ in range(200))
        assert patient.see(body([{"role": "user", "content": f"Add these up:\n{table}"}])) is None


def test_side_requests_between_the_turns_of_an_agent_are_well() -> None:
    patient = Patient()
    for turns in range(1, 6):
        assert patient.see(body(talk(turns), tools=TOOLS)) is None
        title = [
            {"role": "system", "content": "Write a title of five words."},
            {"role": "user", "content": "Bread."},
        ]
        assert patient.see(body(title)) is None
        assert patient.see(body([{"role": "user", "content": f"Is number {turns} a new topic?"}])) is None


def test_a_moving_cache_mark_and_a_billing_line_are_well() -> None:
    patient = Patient()
    for turn in range(1, 5):
        messages = [
            {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
            for message in talk(turn)[1:]
        ]
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {turn}"},
            {"type": "text", "text": SYSTEM},
        ]
        assert (
            patient.see({"model": "m", "system": system, "messages": messages}, shape=Shape.MESSAGES) is None
        )


# Each kind, at its place.


Make = Callable[[int], Body]


TIME, ID = "timestamp or date", "id or counter"


def system_with(text: Callable[[int], str]) -> Make:
    return lambda turn: body(talk(turn, text(turn)))


def _reordered(turn: int) -> Body:
    tools = list(TOOLS)
    Random(turn).shuffle(tools)
    return body(talk(turn), tools=[*tools[turn % 4 :], *tools[: turn % 4]])


def _whitespace(turn: int) -> Body:
    return body(talk(turn, SYSTEM.replace(". ", ".\r\n" if turn % 2 else ".\n")))


def _truncated(turn: int) -> Body:
    messages = talk(turn + 8)
    return body([messages[0], *messages[1 + 2 * turn :]])


def _stamped_messages(turn: int) -> Body:
    messages = talk(turn + 3)
    messages[1] = {
        **messages[1],
        "content": f"[now {NOON + timedelta(minutes=turn):%H:%M}] {messages[1]['content']}",
    }
    return body(messages)


def _rewritten(turn: int) -> Body:
    messages = talk(turn + 4)
    messages[2] = {**messages[2], "content": "Shortened: " + "much " * turn}
    return body(messages)


def _json_in_text(turn: int) -> Body:
    known = shuffled(
        {"shop": "bakery", "town": "Ulm", "open": "six", "rye": "sold", "owner": "Ann"}, Random(turn)
    )
    return body(talk(turn, f"{SYSTEM}\nWhat is known: {json.dumps(known)}"))


def _documents(turn: int) -> Body:
    lines = [
        f"- Document of {what}: it is about {what} alone."
        for what in ("rye", "salt", "yeast", "ovens", "flour")
    ]
    return body(talk(turn, "\n".join([SYSTEM, *lines[turn % 5 :], *lines[: turn % 5]])))


@pytest.mark.parametrize(
    ("make", "place", "number", "kind", "offset"),
    [
        (system_with(lambda n: f"Now: {later(n):%Y-%m-%dT%H:%M:%SZ}. {SYSTEM}"), "system", 0, TIME, 5),
        (system_with(lambda n: f"Today is {later(86400 * n):%A, %B %d, %Y}. {SYSTEM}"), "system", 0, TIME, 9),
        (system_with(lambda n: f"{SYSTEM} (epoch {1_764_000_000 + n * 61})"), "system", 0, TIME, None),
        (system_with(lambda n: f"Call {n:08x}-1234-4abc-8def-0123456789ab. {SYSTEM}"), "system", 0, ID, 5),
        (system_with(lambda n: f"This is call number {n + 8}. {SYSTEM}"), "system", 0, ID, 20),
        (system_with(lambda n: f"Trace 9f{n:02x}c0ffee{n:02x}. {SYSTEM}"), "system", 0, ID, 6),
        (_whitespace, "system", 0, "whitespace", None),
        (_json_in_text, "system", 0, "JSON key order", None),
        (_documents, "system", 0, "reordered text", None),
        (system_with(lambda n: f"{SYSTEM} Notes so far: {'be kind, ' * n}"), "system", 0, "edited system prompt", None),
        (lambda n: body(talk(n), tools=shuffled(TOOLS, Random(n))), "tools", 0, "JSON key order", None),
        (_reordered, "tools", 0, "reordered tools", None),
        (lambda n: body(talk(n), tools=TOOLS[: 1 + n % 4]), "tools", 0, "changed tools", None),
        (_truncated, "message", 1, "truncated history", None),
        (_stamped_messages, "message", 1, TIME, None),
        (_rewritten, "message", 2, "rewritten history", None),
        (lambda n: body(talk(n), chat_template_kwargs={"steps": "x" * n}), "template", 0, "other", None),
    ],
)  # fmt: skip
def test_a_break_has_its_place_and_kind(
    make: Make, place: str, number: int, kind: str, offset: int | None
) -> None:
    patient = Patient()
    # From the second on: what follows in both is the proof that they belong together.
    seen = [patient.see(make(turn)) for turn in range(2, 8)]
    assert seen[0] is None
    for broken in seen[1:]:
        assert broken is not None
        assert (broken.place, broken.number, broken.kind) == (place, number, kind)
        assert broken.lost_bytes > 0
        if offset is not None:
            assert broken.offset == offset
    (found,) = patient.found
    assert (found["place"], found["kind"], found["breaks"], found["keys"]) == (place, kind, 5, 1)
    assert found["share_of_followups"] == 1.0


def test_what_is_lost_is_what_would_have_been_cached() -> None:
    patient = Patient()
    for turn in (3, 4):
        broken = patient.see(body(talk(turn, f"At {NOON + timedelta(seconds=turn):%H:%M:%S} {SYSTEM}")))
    assert broken is not None
    known = sum(len(message["content"]) + len(message["role"]) + 1 for message in talk(3)[1:])
    assert broken.lost_bytes == len(SYSTEM) + len("12:00:04 ") + known
    assert patient.found[0]["lost_tokens"] == round(broken.lost_bytes / 4)


def test_a_clock_in_a_question_that_is_another_each_time() -> None:
    patient = Patient()
    rules_of_the_house = "Answer as a baker would. " * 60
    for minute in range(4):
        text = f"It is {later(60 * minute):%H:%M}. {rules_of_the_house} Question: {'why ' * (minute + 1)}?"
        broken = patient.see({"model": "m", "prompt": text}, shape=Shape.COMPLETIONS)
    assert broken is not None
    assert (broken.place, broken.kind, broken.offset) == ("message", "timestamp or date", 6)
    assert 1000 < broken.lost_bytes <= len(text)


def test_without_a_key_a_conversation_is_known_by_its_first_message() -> None:
    patient = Patient()
    for turn in (2, 3):
        broken = patient.see(body(talk(turn, f"At {NOON + timedelta(seconds=turn)} {SYSTEM}")), key=None)
        assert patient.see(body(talk(turn, about="wheat")), key=None) is None
    assert broken is not None
    assert patient.doctor.keys == 2
