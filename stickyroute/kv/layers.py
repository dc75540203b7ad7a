"""A model's layers by what each keeps of a token, or of a whole sequence.

Owns the many ways in which model families say so. Sources: the attention modules and `KVCacheSpec`s of vLLM, and the
configuration classes of `transformers`, by family: sliding windows by `layer_types` (Gemma 3, gpt-oss, Qwen), else by
`sliding_window_pattern` (Gemma 3, Cohere 2) or `max_window_layers` (Qwen 2), else all (Mistral 7B v0.1); hybrids by
`layer_types`, `full_attention_interval` (Qwen3-Next), `attn_layer_period` (Jamba), `attn_layer_indices` (Bamba),
`hybrid_override_pattern` (Nemotron-H), `attn_type_list` (MiniMax), `linear_attn_config` (Kimi Linear).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stickyroute.errors import ConfigError
from stickyroute.kv.fields import Fields

__all__ = ["Attention", "attention", "kinds", "state_numbers"]

_SLIDING: Final = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
_BARE: Final = frozenset({"mlp", "moe"})
_FULL: Final = frozenset({"full_attention", "attention", "global_attention", "hybrid"})


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer keeps of a token: `heads` x (`key_dim` + `value_dim`) numbers; a latent (MLA) is one head that
    every tensor-parallel rank keeps whole. `window` tokens at most, None for all. `extra_bytes` comes on top."""

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: bool = False
    extra_bytes: int = 0


def kinds(known: Fields, count: int, notes: list[str]) -> list[str]:
    """Each layer: "full", "sliding", "recurrent" or "none" (an MLP alone)."""
    listed = known.get("layer_types") or known.get("layers_block_type")
    if isinstance(listed, list):
        if len(listed) != count:
            raise ConfigError(f"layer_types has {len(listed)} entries for num_hidden_layers {count}")
        return [
            "sliding" if kind in _SLIDING else "full" if kind in _FULL else "none" if kind in _BARE else "recurrent"
            for kind in listed
        ]  # fmt: skip
    pattern = known.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        marks = {"*": "full", "M": "recurrent", "-": "none", "E": "none"}
        return [marks.get(mark, "none") for mark in pattern[:count]]
    linear = known.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = set(linear["full_attn_layers"])  # counted from 1
        return ["full" if layer + 1 in full else "recurrent" for layer in range(count)]
    listed = known.get("attn_type_list")
    if isinstance(listed, list) and len(listed) == count:
        return ["full" if kind == 1 else "recurrent" for kind in listed]
    listed = known.get("attn_layer_indices") or known.get("hybrid_layer_ids")
    if isinstance(listed, list):
        return ["full" if layer in listed else "recurrent" for layer in range(count)]
    every = known.whole("full_attention_interval")
    if every is not None:
        return ["full" if (layer + 1) % every == 0 else "recurrent" for layer in range(count)]
    every = known.whole("attn_layer_period")
    if every is not None:
        offset = known.whole("attn_layer_offset", least=0) or 0
        return ["full" if layer % every == offset else "recurrent" for layer in range(count)]
    if known.get("model_type") in ("mamba", "mamba2", "falcon_mamba", "rwkv"):
        return ["recurrent"] * count
    return _windows(known, count, notes)


def _windows(known: Fields, count: int, notes: list[str]) -> list[str]:
    chunk = known.whole("attention_chunk_size")
    if known.whole("sliding_window", least=0) in (None, 0) and chunk is None:
        return ["full"] * count
    if known.get("use_sliding_window") is False:
        return ["full"] * count
    pattern = known.whole("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None and known.get("model_type") in ("gemma3", "gemma3_text"):
        pattern = 6
    if pattern is None and known.get("model_type") == "gemma2":
        pattern = 2
    if pattern is not None:
        return ["full" if (layer + 1) % pattern == 0 else "sliding" for layer in range(count)]
    if chunk is not None:  # Llama 4: every fourth layer sees everything
        every = known.get("no_rope_layer_interval") or 4
        return ["full" if (layer + 1) % every == 0 else "sliding" for layer in range(count)]
    lower = known.whole("max_window_layers", least=0)
    if lower is not None and known.get("use_sliding_window") is not None:
        return ["full" if layer < lower else "sliding" for layer in range(count)]
    notes.append("Every layer sees a sliding window only.")
    return ["sliding"] * count


def attention(known: Fields, hidden: int) -> Attention:
    """Of one layer. MLA keeps one latent of kv_lora_rank and one rotated key of qk_rope_head_dim for all heads
    (DeepSeek-V2, arXiv 2405.04434, section 2.1); all others a key and a value for each KV head (GQA, arXiv
    2305.13245). DeepSeek V3.2's indexer keeps an fp8 key of index_head_dim and a scale of four bytes besides."""
    rank = known.whole("kv_lora_rank")
    if rank is not None:
        index = known.whole("index_head_dim")
        return Attention(
            1,
            rank,
            known.need("qk_rope_head_dim"),
            latent=True,
            extra_bytes=0 if index is None else index + 4,
        )
    heads = known.need("num_attention_heads", "n_head", "num_heads", "n_heads")
    own = known.whole(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"
    )
    if known.get("multi_query") is True and known.get("new_decoder_architecture") is not True:
        own = 1
    head_dim = known.whole("head_dim", "attention_head_dim", "kv_channels")
    if head_dim is None:
        if hidden % heads:
            raise ConfigError(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is missing"
            )
        head_dim = hidden // heads
    kv_heads = heads if own is None else own
    if kv_heads > heads or heads % kv_heads:
        raise ConfigError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    return Attention(kv_heads, head_dim, known.whole("v_head_dim") or head_dim)


def state_numbers(known: Fields, hidden: int, notes: list[str]) -> int:
    """Numbers that one recurrent layer keeps for a sequence: its matrix and the inputs its convolution looks back at.

    Gated delta nets (Qwen3-Next): value heads x key dim x value dim, and (2 keys + values) x (kernel - 1). Mamba 2:
    heads x head dim x state, and (inner + 2 groups x state) x (kernel - 1). Mamba 1: inner x state, and inner x
    (kernel - 1).
    """
    value_heads = known.whole("linear_num_value_heads")
    if value_heads is not None:
        key_heads = known.need("linear_num_key_heads")
        key_dim, value_dim = known.need("linear_key_head_dim"), known.need("linear_value_head_dim")
        looked_at = (known.whole("linear_conv_kernel_dim") or 4) - 1
        return (
            value_heads * key_dim * value_dim
            + (2 * key_heads * key_dim + value_heads * value_dim) * looked_at
        )
    size = known.whole("mamba_d_state", "ssm_state_size", "state_size")
    kernel = known.whole("mamba_d_conv", "conv_kernel") or 4
    heads = known.whole("mamba_n_heads", "mamba_num_heads")
    if size is not None and heads is not None:
        dim = known.need("mamba_d_head", "mamba_head_dim")
        groups = known.whole("mamba_n_groups", "n_groups") or 1
        return heads * dim * size + (heads * dim + 2 * groups * size) * (kernel - 1)
    if size is not None:
        inner = known.whole("intermediate_size") if known.get("model_type") == "mamba" else None
        inner = inner or hidden * (known.whole("mamba_expand", "expand") or 2)
        return inner * size + inner * (kernel - 1)
    notes.append(
        "What recurrent layers keep for each sequence is not counted: their sizes are not known here."
    )
    return 0
