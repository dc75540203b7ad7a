"""The prefix doctor as a whole: whom it names on a workload, what it keeps, and that no prompt is too strange."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.benchmark.workloads.chat import Chat
from stickyroute.openai.routes import Shape
from stickyroute.routing.doctor import Doctor, watches
from stickyroute.routing.doctor.advice import advice, rules
from tests.routing.patients import NOON, SYSTEM, TOOLS, Body, Patient, body, later, shuffled, talk


def test_on_a_chat_workload_the_two_tenants_that_break_are_named_and_no_other() -> None:
    doctor, rand = Doctor(1000, 0.0), Random(5)
    for request in Chat(rate=3.0, seconds=60.0, think_s=6.0, fresh=True).requests(Random(1)):
        number = int(request.user.removeprefix("user-"))
        asked = body(deepcopy(request.prompt.messages()), tools=TOOLS, user=request.user)
        if number % 4 == 1:
            now = NOON + timedelta(seconds=request.at_s)
            asked["messages"][0]["content"] = f"Current time: {now}. " + asked["messages"][0]["content"]
        elif number % 4 == 2:
            asked["tools"] = shuffled(TOOLS, rand)
        doctor.see(number + 1, f"team-{number % 4}", "m", Shape.CHAT, asked, request.at_s)
    told = doctor.findings.told(60.0)
    named = {(row["tenant"], row["place"], row["kind"]) for row in told}
    assert named == {("team-1", "system", "timestamp or date"), ("team-2", "tools", "JSON key order")}
    for row in told:
        assert row["share_of_followups"] > 0.9
        assert row["lost_tokens_per_hour"] > 100_000
    assert told[0]["lost_tokens_per_hour"] >= told[1]["lost_tokens_per_hour"]


def test_no_text_is_kept_unless_asked_for() -> None:
    secret = "the-secret-of-the-house"
    for samples in (False, True):
        patient = Patient(samples=samples)
        for turn in (2, 3):
            patient.see(body(talk(turn, f"{secret} at {NOON + timedelta(seconds=turn)} {SYSTEM}")))
        assert (secret in repr(patient.found)) is samples
        kept = repr([patient.doctor._lines, patient.doctor._traits, patient.doctor._seen])
        assert secret not in kept
        assert "bakery" not in kept


def test_what_is_remembered_is_bounded() -> None:
    patient = Patient(keys=10)
    for number in range(60):
        for turn in (1, 2):
            asked = body(
                talk(turn, f"{NOON + timedelta(seconds=turn + number)} {SYSTEM}", about=f"bread {number}")
            )
            patient.see(asked, key=number, tenant=f"tenant {number}")
    assert patient.doctor.keys == 10
    assert all(len(lines) <= 3 for lines in patient.doctor._lines.values())


def test_many_tenants_that_come_once_hide_nobody() -> None:
    patient = Patient(keys=10_000)
    for turn in range(1, 4):
        for number in range(300):
            patient.see(body(talk(1, about=f"{number}")), key=number + 1000 * turn, tenant=f"{turn} {number}")
        patient.see(body(talk(turn, f"{later(turn)} {SYSTEM}")), key=1, tenant="clocked")
    (found,) = patient.found
    assert (found["tenant"], found["breaks"]) == ("clocked", 2)
    assert len(patient.doctor.findings.groups) == 256


@pytest.mark.parametrize(
    "text", ["day-" * 20_000, "a-1-" * 20_000, "0:" * 40_000, "f" * 70_000 + "1", "1" * 70_000]
)
def test_hostile_texts_are_looked_at_as_quickly_as_any(text: str) -> None:
    patient = Patient()
    for number in range(3):
        patient.see(body([{"role": "system", "content": f"{number}{text}"}, *talk(2)[1:]]))


def test_a_part_of_the_conversations_stands_for_all() -> None:
    doctor = Doctor(1000, 0.0)
    mask = 3
    keys = [key * 0x9E3779B97F4A7C15 % (1 << 64) for key in range(400)]
    watched = [key for key in keys if watches(key, mask)]
    assert 60 < len(watched) < 140
    for key in watched:
        for turn in (1, 2):
            asked = body(talk(turn, f"{NOON + timedelta(seconds=turn)} {SYSTEM}"))
            doctor.see(key, "", "m", Shape.CHAT, asked, 1.0, mask=mask)
    (found,) = doctor.findings.told(60.0)
    assert found["breaks"] == 4 * len(watched)


@pytest.mark.parametrize(
    "shape", [Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES, Shape.COMPLETIONS, Shape.EMBEDDINGS]
)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"messages": None, "tools": "x", "system": 3, "input": {}, "prompt": [1, 2], "instructions": []},
        {
            "messages": [
                None,
                3,
                "x",
                [],
                {},
                {"role": 5},
                {"role": "user"},
                {"role": "user", "content": {"a": [1]}},
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [None, 5, {"type": ["x"]}, {"type": "image_url", "image_url": 3}]}
            ]
        },
        {"messages": [{"role": "\ud800", "content": "\ud800 12:00"}], "tools": [{"a": "\ud800"}, None, 3]},
        {"input": [{"type": "message", "content": None}, {"type": "function_call_output", "output": "1"}]},
        {"previous_response_id": "resp_1", "input": "hello"},
        {"prompt": ["a", "b"]},
    ],
)
def test_strange_bodies_are_no_error(shape: Shape, asked: Body) -> None:
    patient = Patient()
    for _ in range(2):
        assert patient.see(asked, shape=shape) is None


def test_advice_says_what_to_do() -> None:
    assert "the system prompt" in advice("system", "timestamp or date")
    assert "sort" in advice("tools", "JSON key order")
    assert advice("message", "no such kind")


def test_rules_of_thumb() -> None:
    def named(*figures: Any) -> list[str]:
        return [rule["figure"] for rule in rules(*figures)]

    assert named(0.39, 0.31, 1e6, 0.8, False) == []
    assert named(0.41, 0.29, 1e6, 0.81, False) == ["overlap", "hit_rate", "kv_used"]
    assert named(None, None, 0.0, None, False) == []
    assert named(0.1, 0.0, 100.0, None, False) == []  # too little to tell


words = st.text(alphabet="abc 012:-{}\n", max_size=120)


chats = st.lists(words, min_size=1, max_size=8)


@given(texts=chats, more=chats, tools=st.booleans())
def test_a_prompt_that_goes_on_never_breaks(texts: list[str], more: list[str], tools: bool) -> None:
    patient = Patient()
    asked = {"tools": TOOLS} if tools else {}
    for seen in range(1, len(texts) + len(more) + 1):
        messages = [{"role": "user", "content": text} for text in [*texts, *more][:seen]]
        assert patient.see(body(messages, **asked)) is None


@given(before=chats, after=chats)
def test_what_is_lost_is_never_more_than_the_prompt(before: list[str], after: list[str]) -> None:
    patient = Patient()
    for texts in (before, after):
        asked = body([{"role": "user", "content": text} for text in texts])
        broken = patient.see(asked)
    if broken is not None:
        whole = sum(len(f"user\x1f{text}".encode()) for text in after)
        assert 0 < broken.lost_bytes <= whole
        assert 0 <= broken.number < len(after)
        assert 0 <= broken.offset <= len(f"user\x1f{after[broken.number]}".encode())
