"""Prompts: equal prefixes have equal blocks and equal text, different ones do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.benchmark.prompts import BLOCK_TOKENS, Prompt, seed_of, start, text_of

part = st.tuples(st.sampled_from(["system", "user", "assistant"]), st.integers(0, 3), st.integers(1, 70))


def chain(parts: list[tuple[str, int, int]]) -> Prompt:
    prompt = start(*parts[0])
    for role, seed, tokens in parts[1:]:
        prompt = prompt.then(role, seed, tokens)
    return prompt


def tokens_of(prompt: Prompt) -> list[tuple[int, int]]:
    """What the keys stand for: (seed, place in its stream) of each token."""
    return [(part.seed, at) for part in prompt.parts() for at in range(part.tokens)]


@given(st.lists(part, min_size=1, max_size=6))
def test_there_is_one_key_for_each_full_block(parts: list[tuple[str, int, int]]) -> None:
    prompt = chain(parts)
    assert len(prompt.keys()) == prompt.total // BLOCK_TOKENS
    assert prompt.total == sum(tokens for _, _, tokens in parts)


@given(st.lists(part, min_size=1, max_size=6), part)
def test_the_keys_of_a_prefix_are_a_prefix_of_the_keys(
    parts: list[tuple[str, int, int]], more: tuple[str, int, int]
) -> None:
    prompt = chain(parts)
    longer = prompt.then(*more)
    assert longer.keys()[: len(prompt.keys())] == prompt.keys()


@given(st.lists(part, min_size=1, max_size=5), st.lists(part, min_size=1, max_size=5))
def test_different_tokens_have_different_keys(
    left: list[tuple[str, int, int]], right: list[tuple[str, int, int]]
) -> None:
    one, other = chain(left), chain(right)
    mine, theirs = tokens_of(one), tokens_of(other)
    for block, (a, b) in enumerate(zip(one.keys(), other.keys(), strict=False)):
        end = (block + 1) * BLOCK_TOKENS
        if mine[:end] != theirs[:end]:
            assert a != b


def test_a_chain_made_anew_has_the_same_keys() -> None:
    parts = [("system", 1, 20), ("user", 2, 33), ("assistant", 3, 9)]
    assert chain(parts).keys() == chain(parts).keys()


def test_the_text_of_a_shorter_part_begins_that_of_a_longer_one() -> None:
    assert text_of(7, 50).startswith(text_of(7, 20))
    assert len(text_of(7, 50)) == 200
    assert text_of(7, 20) != text_of(8, 20)


def test_seeds_of_names_are_the_same_in_every_process() -> None:
    assert seed_of("group", 3) == seed_of("group", 3) != seed_of("group", 4)
    assert seed_of("group", 3) == 9046876376767356


def test_messages_join_neighbours_of_one_role_and_take_real_replies() -> None:
    prompt = start("system", 1, 2).then("system", 2, 1).then("user", 3, 1).then("assistant", 4, 2)
    messages = prompt.then("user", 5, 1).messages({4: "said", 5: "not an answer"})
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == text_of(1, 2) + text_of(2, 1)
    assert messages[2]["content"] == "said"
    assert messages[3]["content"] == text_of(5, 1)
