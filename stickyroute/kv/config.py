"""A model's config.json, as far as memory goes: its layers by what each keeps of a token, and its weights.

Owns the order in which it is read. Raises ConfigError that names the field and says what is wrong; a field that is
not known to matter is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from stickyroute.errors import ConfigError
from stickyroute.kv.fields import Fields, type_bytes
from stickyroute.kv.layers import Attention, attention, kinds, state_numbers
from stickyroute.kv.weights import count_weights, quantized_bytes

__all__ = ["Model", "read_model"]

_INNER: Final = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True, slots=True)
class Model:
    """`layers` that keep something for every token, `state_numbers` those that recurrent layers keep for each
    sequence whatever its length. `weights` is the number of parameters, `weight_bytes` what one takes as
    published, `dense_weights` those that quantization leaves alone. `notes` are what a reader should know."""

    name: str
    layers: tuple[Attention, ...]
    all_layers: int
    recurrent_layers: int
    state_numbers: int
    weights: int
    dense_weights: int
    dtype: str
    weight_bytes: float
    context_tokens: int | None
    notes: tuple[str, ...]


def read_model(path: Path) -> Model:
    """Read a config.json, or the folder it lies in. Raises ConfigError, or OSError where it cannot be read."""
    if path.is_dir():
        path = path / "config.json"
    try:
        fields = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error.msg} (line {error.lineno})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: a model's config.json is a JSON object")
    try:
        return _model(fields)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _model(outer: Mapping[str, Any]) -> Model:
    fields = outer
    notes: list[str] = []
    for name in _INNER:
        while isinstance(fields.get(name), dict):
            # What the inner one leaves out, its type for example, the outer one may say.
            fields = {**{key: value for key, value in fields.items() if key != name}, **fields[name]}
            if name == "text_config" or name == "llm_config":
                notes.append(
                    "Counted is the language model; a vision or audio encoder's weights come on top."
                )
    known = Fields(fields)
    count = known.need("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = known.need("hidden_size", "n_embd", "d_model")
    of_layer = kinds(known, count, notes)
    kept = [kind for kind in of_layer if kind != "recurrent" and kind != "none"]
    layers: list[Attention] = []
    if kept:
        own = attention(known, hidden)
        window = known.whole("sliding_window", "attention_chunk_size", "sliding_window_size", least=0) or None
        shared = known.whole("num_kv_shared_layers", least=0) or 0
        if shared:
            kept = kept[: max(1, len(kept) - shared)]
            notes.append(f"The last {shared} layers use the keys and values of earlier ones.")
        for kind in kept:
            bounded = window if kind == "sliding" else None
            layers.append(replace(own, window=bounded))
    recurrent = of_layer.count("recurrent") or (count if known.get("model_type") == "falcon_h1" else 0)
    state = recurrent * state_numbers(known, hidden, notes) if recurrent else 0
    weights = count_weights(known, of_layer, hidden, notes)
    dtype = str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16").removeprefix("torch.")
    each = type_bytes(dtype, "torch_dtype")
    quantized = quantized_bytes(fields.get("quantization_config"), notes)
    dense = 0
    if quantized is not None and quantized != each:
        each = quantized
        # Embeddings stay as they are; MXFP4 models quantize their experts alone.
        dense = weights.embeddings + (weights.mixers if weights.experts and quantized < 1 else 0)
    return Model(
        str(outer.get("_name_or_path") or fields.get("model_type") or outer.get("model_type") or "model"),
        tuple(layers),
        count,
        recurrent,
        state,
        weights.all,
        dense,
        dtype,
        each,
        known.whole("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
        tuple(dict.fromkeys(notes)),
    )
