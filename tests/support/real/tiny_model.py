"""Writes a tiny Llama chat model with random weights that real engines load; needs no network.

The text it generates is nonsense but well behaved. The tokenizer is a byte-level BPE trained on CPython's own
`pydoc_data.topics`, so any text round-trips. The output rows of all special tokens and of all tokens that are
not plain printable ASCII are zero: greedy decoding never ends early and never emits half a UTF-8 character,
so a request for N tokens yields exactly N. The tokenizer, and with it the text, depends on the Python
version: no test may hold golden text.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
LAYERS = 2
HIDDEN = 64
HEAD = 32  # vLLM's CPU attention wants a multiple of 32
CONTEXT_TOKENS = 32768
SEED = 0

SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"]
TEMPLATE = (
    "{{ '<|bos|>' }}"
    "{% if tools %}{{ '<|system|>\\nTools: ' + (tools | tojson) + '<|end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' }}"
    "{% if message['content'] is not none %}{{ message['content'] }}{% endif %}{{ '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def write_tiny_model(folder: Path) -> None:
    """A Hugging Face model folder of 0.9 MB: 213,312 parameters in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(folder / "config.json", _config())
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [1, SPECIAL.index("<|end|>")], "pad_token_id": 2},
    )
    save_file(_weights(tokenizer), folder / "model.safetensors", metadata={"format": "pt"})


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": SPECIAL[3:],
        "chat_template": TEMPLATE,
    }


def _config() -> dict[str, Any]:
    heads = HIDDEN // HEAD
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights(tokenizer: Tokenizer) -> dict[str, Any]:
    random = np.random.default_rng(SEED)

    def normal(rows: int, columns: int, deviation: float) -> Any:
        return (random.standard_normal((rows, columns)) * deviation).astype(np.float32)

    wide = 2 * HIDDEN
    attention = HIDDEN // HEAD * HEAD
    weights = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN, 1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    shapes = {
        "self_attn.q_proj": (attention, HIDDEN),
        "self_attn.k_proj": (attention, HIDDEN),
        "self_attn.v_proj": (attention, HIDDEN),
        "self_attn.o_proj": (HIDDEN, attention),
        "mlp.gate_proj": (wide, HIDDEN),
        "mlp.up_proj": (wide, HIDDEN),
        "mlp.down_proj": (HIDDEN, wide),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in shapes.items():
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, columns**-0.5)
        weights[f"{prefix}input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        weights[f"{prefix}post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    head = normal(VOCABULARY, HIDDEN, 4.0 * HIDDEN**-0.5)
    for token, row in tokenizer.get_vocab().items():
        text = tokenizer.decode([row], skip_special_tokens=False)
        if token in SPECIAL or not (text and text.isascii() and text.isprintable()):
            head[row] = 0.0
    weights["lm_head.weight"] = head
    return weights


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the tiny model as a Hugging Face folder.")
    parser.add_argument("folder", type=Path)
    write_tiny_model(parser.parse_args().folder)
