from pathlib import Path

import pytest

from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import H100_LLAMA_8B, H100_LLAMA_70B, PROFILES
from stickyroute.simulator.timing import StepTime, attended_pairs


def test_every_term_counts():
    time = StepTime(
        base_s=1.0,
        prefill_token_s=0.1,
        decode_sequence_s=0.01,
        prefill_attention_s=1e-3,
        decode_attention_s=1e-4,
    )
    assert time.step_s(prefill_tokens=10, pairs=50, decodes=3, context=700) == pytest.approx(
        1 + 1 + 0.03 + 0.05 + 0.07
    )


def test_pairs_of_chunks_add_up_to_those_of_the_whole_prompt():
    assert attended_pairs(0, 100) == 5000
    assert attended_pairs(0, 60) + attended_pairs(60, 40) == attended_pairs(0, 100)


def time_to_first_token(profile, prompt_tokens):
    engine = Engine(profile)
    sequence = engine.submit(0.0, [], prompt_tokens, 1)
    engine.advance(1e9)
    return sequence.first_token_s


def test_a_70b_model_prefills_as_fast_as_published():
    assert 0.040 <= time_to_first_token(H100_LLAMA_70B, 1_000) <= 0.080
    assert 0.8 <= time_to_first_token(H100_LLAMA_70B, 32_000) <= 1.4
    assert 12e9 <= H100_LLAMA_70B.blocks * H100_LLAMA_70B.block_size * 320 * 1024 <= 18e9


def test_the_smaller_model_is_faster_and_has_more_room():
    for tokens in (100, 1_000, 8_000, 32_000):
        assert time_to_first_token(H100_LLAMA_8B, tokens) < time_to_first_token(H100_LLAMA_70B, tokens)
    assert H100_LLAMA_8B.blocks > H100_LLAMA_70B.blocks


def test_the_longest_prompt_of_every_profile_fits_its_cache():
    for profile in PROFILES.values():
        assert profile.context_tokens <= (profile.blocks - 1) * profile.block_size


def test_every_profile_is_in_the_documentation():
    documented = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    assert [name for name in PROFILES if f"| `{name}` |" not in documented] == []
