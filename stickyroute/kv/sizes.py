"""How many tokens and users fit: the arithmetic.

    KV bytes of a token and layer = heads x (key dim + value dim) x bytes of a number      (GQA: key dim = value dim)
    room for KV on a GPU          = memory x utilization - weights / GPUs - overhead       (vLLM's own accounting)
    tokens that fit               = room / KV bytes of a token on one GPU

Tensor parallelism shards KV heads: a GPU keeps max(1, heads / N) of them, so with more GPUs than KV heads each head
is kept several times; a latent (MLA) is kept whole by every GPU. A layer with a sliding window keeps the window's
tokens of each sequence at most, so what a user takes grows slower than the conversation, and tokens that fit are
told for sequences of one length. Pure; sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from stickyroute.errors import ConfigError
from stickyroute.kv.config import Model
from stickyroute.kv.layers import Attention

__all__ = ["OVERHEAD_BYTES", "Fit", "fit"]

OVERHEAD_BYTES = 3 << 29
"""Activations, CUDA graphs and the runtime's own, on each GPU, 1.5 GiB: what vLLM's profiling run takes for models
of 7 to 70 billion parameters at its defaults; more for very large batches of prompt tokens."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`token_bytes` is what all layers together keep of one token, once, however many GPUs there are;
    `token_bytes_gpu` what each GPU keeps; `deep_token_bytes` what a token adds behind every sliding window.
    `weights_bytes` are all weights, `room_bytes` what is left for KV on each GPU. `tokens` fit in sequences of
    `context_tokens`, which are `user_bytes` each, over all GPUs; `users` of them stay warm."""

    token_bytes: float
    deep_token_bytes: float
    token_bytes_gpu: float
    state_bytes: float
    weights_bytes: float
    room_bytes: float
    context_tokens: int
    user_bytes: float
    tokens: int
    users: int


def fit(
    model: Model,
    gpu_memory_bytes: int,
    *,
    tensor_parallel: int = 1,
    utilization: float = 0.9,
    kv_type_bytes: float = 2.0,
    weight_type_bytes: float | None = None,
    weights_bytes: int | None = None,
    overhead_bytes: int = OVERHEAD_BYTES,
    context_tokens: int = 8192,
    block_tokens: int = 16,
) -> Fit:
    """What fits on `tensor_parallel` GPUs of that size together. Raises ConfigError where the weights do not."""
    if weights_bytes is not None:
        weights = float(weights_bytes)
    elif weight_type_bytes is not None:
        weights = model.weights * weight_type_bytes
    else:
        weights = (model.weights - model.dense_weights) * model.weight_bytes + model.dense_weights * 2.0
    room = gpu_memory_bytes * utilization - weights / tensor_parallel - overhead_bytes
    if room <= 0:
        least = _gpus_needed(weights, gpu_memory_bytes * utilization - overhead_bytes)
        more = f"; it takes --tensor-parallel {least} at least" if least else ""
        raise ConfigError(
            f"the weights alone ({weights / 2**30:.1f} GiB) do not fit into {tensor_parallel} x "
            f"{gpu_memory_bytes / 2**30:.0f} GiB at utilization {utilization:g}{more}"
        )
    blocks = -(-context_tokens // block_tokens)
    kept = blocks * block_tokens
    user = 0.0
    for layer in model.layers:
        held = kept if layer.window is None else min(kept, _rounded(layer.window, block_tokens))
        user += held * _gpu_bytes(layer, kv_type_bytes, tensor_parallel)
    state = model.state_numbers * 2.0 / tensor_parallel
    user += state
    users = int(room / user) if user else 0
    return Fit(
        token_bytes=sum(_bytes(layer, kv_type_bytes) for layer in model.layers),
        deep_token_bytes=sum(_bytes(layer, kv_type_bytes) for layer in model.layers if layer.window is None),
        token_bytes_gpu=sum(_gpu_bytes(layer, kv_type_bytes, tensor_parallel) for layer in model.layers),
        state_bytes=model.state_numbers * 2.0,
        weights_bytes=weights,
        room_bytes=room,
        context_tokens=context_tokens,
        user_bytes=user * tensor_parallel,
        tokens=int(room / user * kept) if user else 0,
        users=users,
    )


def _bytes(layer: Attention, type_bytes: float) -> float:
    return layer.heads * (layer.key_dim + layer.value_dim) * type_bytes + layer.extra_bytes


def _gpu_bytes(layer: Attention, type_bytes: float, gpus: int) -> float:
    if layer.latent:
        return _bytes(layer, type_bytes)
    heads = max(1.0, layer.heads / gpus)
    return heads * (layer.key_dim + layer.value_dim) * type_bytes + layer.extra_bytes


def _rounded(window: int, block_tokens: int) -> int:
    """A window straddles one block more than it fills."""
    return (-(-window // block_tokens) + 1) * block_tokens


def _gpus_needed(weights: float, usable: float) -> int | None:
    if usable <= 0:
        return None
    gpus = 1
    while weights / gpus >= usable:
        gpus *= 2
        if gpus > 1024:
            return None
    return gpus
