"""The prefix doctor: each way to break a prefix by its place and kind, and what is no break at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.benchmark.workloads.chat import Chat
from stickyroute.openai.routes import Shape
from stickyroute.routing.doctor import Doctor, watches
from stickyroute.routing.doctor.advice import advice, rules
from stickyroute.routing.doctor.compare import Break

Body = dict[str, Any]
SYSTEM = (
    "You are the assistant of a bakery. " + "Bread is baked each morning and sold until it is gone. " * 20
)
NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks at the {name} of the bakery.",
            "parameters": {
                "type": "object",
                "properties": {"day": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
    }
    for name in ("stock", "orders", "staff", "weather")
]


def talk(turns: int, system: str = SYSTEM, about: str = "rye") -> list[Body]:
    """A conversation that ends with a question."""
    messages: list[Body] = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages += [
            {
                "role": "user",
                "content": f"And how much {about} is baked by the {'very ' * turn}next morning, please?",
            },
            {
                "role": "assistant",
                "content": f"So much {about}, and {'much ' * turn}more if it is asked for.",
            },
        ]
    return messages[:-1]


def body(messages: list[Body], **more: Any) -> Body:
    return {"model": "m", "messages": messages, **more}


class Patient:
    """A doctor and one user's prompts."""

    def __init__(self, **options: Any) -> None:
        self.doctor = Doctor(options.pop("keys", 100), 0.0, **options)
        self._now_s = count()

    def see(
        self, asked: Body, key: int | None = 7, shape: Shape = Shape.CHAT, tenant: str = ""
    ) -> Break | None:
        return self.doctor.see(key, tenant, "m", shape, asked, float(next(self._now_s)))

    @property
    def found(self) -> list[dict[str, Any]]:
        return self.doctor.findings.told(60.0, samples=True)


def shuffled(value: Any, rand: Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        names = list(value)
        rand.shuffle(names)
        return {name: shuffled(value[name], rand) for name in names}
    return [shuffled(item, rand) for item in value] if isinstance(value, list) else value


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


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


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


# The whole.


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
