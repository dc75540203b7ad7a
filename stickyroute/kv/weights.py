"""A model's weights, estimated from the shapes in its config.json, and what one takes when quantized.

Owns the estimate; the true size is that of the files, which `--weights` sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from stickyroute.kv.fields import Fields
from stickyroute.kv.layers import attention

__all__ = ["Weights", "count_weights", "quantized_bytes"]

# The scales of a group of 128 four-bit weights take two bytes more; of a block of 32 (MXFP4) one, of 16 (NVFP4) one.
_QUANTIZED: Final = {
    "fp8": 1.0, "fbgemm_fp8": 1.0, "compressed-tensors": 1.0, "modelopt": 1.0, "bitsandbytes": 0.53,
    "awq": 0.53, "awq_marlin": 0.53, "gptq": 0.53, "gptq_marlin": 0.53, "mxfp4": 0.53125, "nvfp4": 0.5625,
}  # fmt: skip
_NOT_GATED: Final = frozenset({
    "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "starcoder2", "nemotron", "mpt",
})  # fmt: skip


class Weights(NamedTuple):
    """Parameters: those of the embeddings, of what mixes tokens (attention), of MLPs; `experts` if those are many."""

    embeddings: int
    mixers: int
    rest: int
    experts: bool

    @property
    def all(self) -> int:
        """Their sum."""
        return self.embeddings + self.mixers + self.rest


def count_weights(known: Fields, kinds: Sequence[str], hidden: int, notes: list[str]) -> Weights:
    """An estimate from the shapes; norms and biases are left out, about 0.1 %."""
    vocabulary = known.whole("vocab_size") or 0
    embeddings = vocabulary * hidden * (1 if known.get("tie_word_embeddings") else 2)
    inner = known.whole("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim") or 4 * hidden
    matrices = 2 if known.get("model_type") in _NOT_GATED else 3
    experts = known.whole("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    expert_inner = known.whole("moe_intermediate_size", "expert_ffn_hidden_size") or inner
    dense_first = known.whole("first_k_dense_replace", least=0) or 0
    shared = (known.whole("n_shared_experts", least=0) or 0) * expert_inner
    shared += known.whole("shared_expert_intermediate_size", least=0) or 0
    step = (
        known.whole(
            "decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", "expert_layer_period"
        )
        or 1
    )
    total = attention_total = 0
    for layer, kind in enumerate(kinds):
        attention_total += _mixer_weights(known, kind, hidden)
        if kind == "none" and known.get("hybrid_override_pattern"):
            total += matrices * hidden * inner
        elif experts is not None and layer >= dense_first and (layer + 1) % step == 0:
            total += (
                experts * matrices * hidden * expert_inner + matrices * hidden * shared + experts * hidden
            )
        elif known.get("hybrid_override_pattern") is None:
            total += matrices * hidden * inner
    if "recurrent" in kinds:
        notes.append("Weights of recurrent layers are a rough estimate; --weights sets the true size.")
    return Weights(embeddings, attention_total, total, experts is not None)


def _mixer_weights(known: Fields, kind: str, hidden: int) -> int:
    """The matrices around attention, or about as many for a recurrent layer."""
    if kind == "none":
        return 0
    if kind == "recurrent":
        return 6 * hidden * hidden
    heads = known.need("num_attention_heads", "n_head", "num_heads", "n_heads")
    each = attention(known, hidden)
    if each.latent:
        nope, rope = known.whole("qk_nope_head_dim") or 128, each.value_dim
        value = known.whole("v_head_dim") or 128
        query_rank = known.whole("q_lora_rank")
        query = heads * (nope + rope)
        queries = hidden * query if query_rank is None else query_rank * (hidden + query)
        latent = hidden * (each.key_dim + rope) + each.key_dim * heads * (nope + value)
        return queries + latent + heads * value * hidden
    return (2 * heads * each.key_dim + each.heads * (each.key_dim + each.value_dim)) * hidden


def quantized_bytes(config: Any, notes: list[str]) -> float | None:
    """Bytes of a quantized weight, None where weights are not quantized."""
    if not isinstance(config, dict):
        return None
    method = str(config.get("quant_method", "")).lower()
    bits = config.get("bits") or config.get("w_bit") or _group_bits(config)
    if isinstance(bits, int) and 0 < bits <= 16:
        return bits / 8 + (0.03 if bits < 8 else 0.0)
    if method in _QUANTIZED:
        return _QUANTIZED[method]
    notes.append(
        f"The quantization {method or '(unnamed)'!r} is not known: weights are counted as they are typed."
    )
    return None


def _group_bits(config: Mapping[str, Any]) -> int | None:
    """The bits of compressed-tensors' first group."""
    groups = config.get("config_groups")
    if isinstance(groups, dict):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, dict) else None
            bits = weights.get("num_bits") if isinstance(weights, dict) else None
            if isinstance(bits, int):
                return bits
    return None
