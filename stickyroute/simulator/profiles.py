"""Named models on named GPUs: the constants of the time model and the size of the cache.

Owns numbers and where they come from; `docs/simulator.md` shows how they were checked. Knows no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass

from stickyroute.simulator.timing import StepTime


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's hardware and settings.

    `blocks` of `block_size` tokens is the cache (num_gpu_blocks); `batched_tokens` the token budget of a step
    (max_num_batched_tokens); `sequences` how many run at once (max_num_seqs); `context_tokens` the longest
    prompt plus answer (max_model_len); `gpus` how many one engine occupies, for what it costs. With
    `async_scheduling` (vLLM's default) a step is planned while the one before it runs, so a new request waits
    one step more.
    """

    name: str
    time: StepTime
    blocks: int
    block_size: int = 16
    batched_tokens: int = 8192
    sequences: int = 256
    context_tokens: int = 32768
    async_scheduling: bool = True
    gpus: int = 1


_KV_BYTES_LLAMA_70B = 320 * 1024  # bytes of KV a token: 2 x 80 layers x 8 heads x 128 x 2 bytes
_KV_BYTES_LLAMA_8B = 128 * 1024  # 2 x 32 layers x 8 heads x 128 x 2 bytes

H100_LLAMA_8B = Profile(
    name="h100-llama-8b",
    time=StepTime(
        base_s=4.5e-3,  # 8 GB of 8-bit weights at 3.35 TB/s, launches, and the scheduler's own work
        prefill_token_s=1 / 45_000,  # 16 GFLOP a token
        decode_sequence_s=15e-6,  # sampling, detokenizing, its row in every matrix product
        prefill_attention_s=0.25e-9,
        decode_attention_s=0.045e-6,  # 128 KiB of KV a token at 2.9 TB/s
    ),
    blocks=int(55e9 / _KV_BYTES_LLAMA_8B / 16),  # what 80 GB leave beside weights and activations
    context_tokens=131_072,
)

H100_LLAMA_70B = Profile(
    name="h100-llama-70b",
    time=StepTime(
        base_s=24.0e-3,  # 70 GB of 8-bit weights at 3.35 TB/s, and launches
        # Prefill is set by what the project asks of this profile: 1k tokens in 40 to 80 ms, 32k in 0.8 to
        # 1.4 s.
        # One H100 alone doesn't reach that; four under tensor parallelism do.
        prefill_token_s=1 / 28_000,
        decode_sequence_s=60e-6,
        prefill_attention_s=0.15e-9,
        decode_attention_s=0.11e-6,  # 320 KiB of KV a token at 2.9 TB/s
    ),
    blocks=int(15e9 / _KV_BYTES_LLAMA_70B / 16),  # 15 GB of room on one 80 GB card: 45,776 tokens
    context_tokens=40_960,
)

H100_QWEN3_32B = Profile(
    name="h100x2-qwen3-32b",  # two cards under tensor parallelism
    # What llm-d published of it: 8,192 tokens of prefill in 0.40 s, 11 ms between tokens when idle, 26 to 29
    # ms at 10,000 tokens a second over eight engines, 307,328 tokens of KV.
    time=StepTime(
        base_s=10.5e-3,
        prefill_token_s=46e-6,
        decode_sequence_s=60e-6,
        prefill_attention_s=0.4e-9,
        decode_attention_s=0.045e-6,  # 128 KiB of KV a token and GPU, at 2.9 TB/s
    ),
    blocks=19_208,
    context_tokens=131_072,
    gpus=2,
)

DEMO = Profile(
    name="demo",
    time=StepTime(
        base_s=4.0e-3,
        prefill_token_s=1
        / 12_000,  # a cold prompt of 1,200 tokens costs a tenth of a second: visible at once
        decode_sequence_s=50e-6,
        prefill_attention_s=0.5e-9,
        decode_attention_s=0.02e-6,
    ),
    blocks=2_048,  # 32,752 tokens: a few dozen conversations, so that spreading users thin evicts them
    batched_tokens=4096,
    sequences=64,
    context_tokens=16_384,
)

# Fitted to measured runs of vLLM 0.19 by bench/fidelity/steptime.py; what that is worth is in
# docs/simulator.md.

RTX4090_LLAMA_8B = Profile(
    name="rtx4090-llama-8b",
    time=StepTime(
        base_s=15.3e-3,
        prefill_token_s=89.7e-6,
        decode_sequence_s=62.5e-6,
        prefill_attention_s=0.39e-9,
        decode_attention_s=0.186e-6,
    ),
    blocks=2_588,
    batched_tokens=2048,
)

RTXPRO6000_LLAMA_8B = Profile(
    name="rtxpro6000-llama-8b",
    time=StepTime(
        base_s=11.0e-3,
        prefill_token_s=43.0e-6,
        decode_sequence_s=55.8e-6,
        prefill_attention_s=1.33e-9,
        decode_attention_s=0.0734e-6,
    ),
    blocks=30_000,  # about 60 GB of KV on a 96 GB card; the run never filled it
    batched_tokens=2048,
    sequences=128,
)

RTXPRO6000_QWEN3_32B = Profile(
    name="rtxpro6000x2-qwen3-32b",  # two cards under tensor parallelism
    time=StepTime(
        base_s=25.9e-3,
        prefill_token_s=165e-6,
        decode_sequence_s=72.6e-6,
        prefill_attention_s=0.174e-9,
        decode_attention_s=0.188e-6,
    ),
    blocks=25_000,  # about 100 GB of KV on two 96 GB cards; the run never filled it
    batched_tokens=2048,
    sequences=128,
    gpus=2,
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        H100_LLAMA_8B,
        H100_LLAMA_70B,
        H100_QWEN3_32B,
        RTX4090_LLAMA_8B,
        RTXPRO6000_LLAMA_8B,
        RTXPRO6000_QWEN3_32B,
        DEMO,
    )
}
