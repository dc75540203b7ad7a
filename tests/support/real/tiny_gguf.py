"""Converts the folder of `tiny_model` to the GGUF file llama.cpp reads: the same weights, the same text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
from safetensors.numpy import load_file

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_tiny_gguf(folder: Path, path: Path) -> None:
    """Read the model in `folder` and write it to `path`."""
    config = _read_json(folder / "config.json")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        _add_tensor(writer, name, tensor, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = _read_json(folder / "tokenizer.json")
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in vocabulary])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_read_json(folder / "tokenizer_config.json")["chat_template"])


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Any, config: dict[str, Any]) -> None:
    base = name.removesuffix(".weight")
    if base in _TENSORS:
        writer.add_tensor(f"{_TENSORS[base]}.weight", tensor)
        return
    _, _, layer, rest = base.split(".", 3)
    if rest == "self_attn.q_proj":
        tensor = _permuted(tensor, config["num_attention_heads"])
    elif rest == "self_attn.k_proj":
        tensor = _permuted(tensor, config["num_key_value_heads"])
    writer.add_tensor(f"blk.{layer}.{_TENSORS[rest]}.weight", tensor)


def _permuted(tensor: Any, heads: int) -> Any:
    """Hugging Face's rotary embedding turns halves of a head, GGUF's llama turns neighbouring pairs."""
    rows, columns = tensor.shape
    return tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Convert the tiny model's folder to GGUF.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write_tiny_gguf(arguments.folder, arguments.path)
