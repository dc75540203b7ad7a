"""The KV calculator against published figures, and what it says of configurations that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stickyroute.errors import ConfigError
from stickyroute.kv import Model, fit, read_model

GIB = 1 << 30

# The fields that matter of each model's published config.json.
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
MISTRAL_7B = LLAMA_8B | {"model_type": "mistral", "vocab_size": 32768, "sliding_window": None}
QWEN25_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_window_layers": 28,
    "sliding_window": 131072, "use_sliding_window": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "num_experts": 128,
    "moe_intermediate_size": 768, "decoder_sparse_step": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 201088, "num_local_experts": 128,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"}, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
GEMMA3_27B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
        "vocab_size": 262208, "tie_word_embeddings": True,
    },
}  # fmt: skip
QWEN_HYBRID_27B = {
    "model_type": "qwen3_5", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4,
    "linear_num_value_heads": 48, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248320, "torch_dtype": "bfloat16",
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 65536, "torch_dtype": "bfloat16",
}  # fmt: skip


def model(tmp_path: Path, fields: Any) -> Model:
    path = tmp_path / "config.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields), encoding="utf-8")
    return read_model(path)


@pytest.mark.parametrize(
    ("fields", "kib"),
    [
        (LLAMA_8B, 128),
        (LLAMA_70B, 320),
        (MISTRAL_7B, 128),
        (QWEN25_7B, 56),
        (QWEN3_8B, 144),
        (QWEN3_30B, 96),
        (GPT_OSS_120B, 72),
        (DEEPSEEK_V3, 68.625),
        (GEMMA3_27B, 496),
        (QWEN_HYBRID_27B, 64),
        (JAMBA, 16),
    ],
)
def test_kv_bytes_of_a_token_are_the_published_ones(tmp_path: Path, fields: Any, kib: float) -> None:
    found = fit(model(tmp_path, fields), 8192 * GIB)
    assert found.token_bytes == kib * 1024


@pytest.mark.parametrize(
    ("fields", "billions"),
    [
        (LLAMA_8B, 8.03),
        (LLAMA_70B, 70.6),
        (QWEN25_7B, 7.62),
        (QWEN3_8B, 8.19),
        (QWEN3_30B, 30.5),
        (GPT_OSS_120B, 116.8),
        (DEEPSEEK_V3, 671.0),
        (GEMMA3_27B, 27.0),
    ],
)
def test_weights_are_the_published_ones_within_a_percent(
    tmp_path: Path, fields: Any, billions: float
) -> None:
    assert model(tmp_path, fields).weights / 1e9 == pytest.approx(billions, rel=0.012)


def test_an_8b_on_an_80_gib_gpu(tmp_path: Path) -> None:
    """0.9 x 80 GiB, less 15 GiB of weights and 1.5 of the rest, at 128 KiB a token: vLLM says about 450,000."""
    found = fit(model(tmp_path, LLAMA_8B), 80 * GIB)
    assert found.weights_bytes / GIB == pytest.approx(14.96, abs=0.1)
    assert 440_000 < found.tokens < 460_000
    assert found.users == found.tokens // 8192
    half = fit(model(tmp_path, LLAMA_8B), 80 * GIB, kv_type_bytes=1.0)
    assert half.token_bytes == found.token_bytes / 2
    assert half.tokens == pytest.approx(2 * found.tokens, rel=0.001)


def test_quantized_weights(tmp_path: Path) -> None:
    mxfp4 = fit(model(tmp_path, GPT_OSS_120B), 80 * GIB)
    assert mxfp4.weights_bytes / 1e9 == pytest.approx(65.2, rel=0.03)  # the published checkpoint
    fp8 = model(tmp_path, DEEPSEEK_V3)
    assert fit(fp8, 8192 * GIB).weights_bytes / 1e9 == pytest.approx(673, rel=0.01)
    awq = {**LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert fit(model(tmp_path, awq), 80 * GIB).weights_bytes / 1e9 == pytest.approx(5.7, rel=0.05)
    strange = model(tmp_path, {**LLAMA_8B, "quantization_config": {"quant_method": "of tomorrow"}})
    assert "of tomorrow" in strange.notes[0]


def test_tensor_parallelism_shards_heads_and_keeps_latents_whole(tmp_path: Path) -> None:
    llama = model(tmp_path, LLAMA_70B)
    assert fit(llama, 80 * GIB, tensor_parallel=4).token_bytes_gpu == 80 * 1024
    assert fit(llama, 80 * GIB, tensor_parallel=8).token_bytes_gpu == 40 * 1024
    assert fit(llama, 80 * GIB, tensor_parallel=16).token_bytes_gpu == 40 * 1024  # 8 heads, each on two GPUs
    deepseek = model(tmp_path, DEEPSEEK_V3)
    assert fit(deepseek, 141 * GIB, tensor_parallel=8).token_bytes_gpu == 68.625 * 1024


def test_a_sliding_window_bounds_what_a_user_takes(tmp_path: Path) -> None:
    gemma = model(tmp_path, GEMMA3_27B)
    assert len([layer for layer in gemma.layers if layer.window is None]) == 10
    short, long = (fit(gemma, 80 * GIB, context_tokens=tokens) for tokens in (1024, 102_400))
    assert short.user_bytes == 1024 * short.token_bytes
    assert long.user_bytes == 102_400 * 10 * 8192 + 1040 * 52 * 8192
    assert long.tokens > 4 * short.tokens
    assert "encoder" in gemma.notes[0]


def test_recurrent_layers_keep_the_same_for_any_length(tmp_path: Path) -> None:
    qwen = model(tmp_path, QWEN_HYBRID_27B)
    assert (len(qwen.layers), qwen.recurrent_layers) == (16, 48)
    # 48 layers of 48 x 128 x 128 and a convolution's (2 x 2048 + 6144) x 3, two bytes each
    assert fit(qwen, 80 * GIB).state_bytes == 48 * (48 * 128 * 128 + 10_240 * 3) * 2
    one, two = (fit(qwen, 80 * GIB, context_tokens=tokens).user_bytes for tokens in (8192, 16_384))
    assert two - one == 8192 * 64 * 1024
    jamba = model(tmp_path, JAMBA)
    assert (len(jamba.layers), jamba.recurrent_layers) == (4, 28)
    assert jamba.state_numbers == 28 * (8192 * 16 + 8192 * 3)


def test_more_names_for_layers(tmp_path: Path) -> None:
    pattern = {**LLAMA_8B, "hybrid_override_pattern": "M-M*" * 8, "ssm_state_size": 128, "mamba_num_heads": 128,
               "mamba_head_dim": 64, "n_groups": 8}  # fmt: skip
    assert len(model(tmp_path, pattern).layers) == 8
    minimax = {**LLAMA_8B, "attn_type_list": ([0] * 7 + [1]) * 4}
    found = model(tmp_path, minimax)
    assert len(found.layers) == 4
    assert "not counted" in " ".join(found.notes)
    kimi = {**DEEPSEEK_V3, "linear_attn_config": {"full_attn_layers": [4, 8, 12]}}
    assert len(model(tmp_path, kimi).layers) == 3
    mixtral = {**MISTRAL_7B, "sliding_window": 4096}
    assert {layer.window for layer in model(tmp_path, mixtral).layers} == {4096}
    falcon = {
        "n_layer": 32,
        "n_embd": 4544,
        "n_head": 71,
        "multi_query": True,
        "model_type": "falcon",
        "vocab_size": 65024,
    }
    assert fit(model(tmp_path, falcon), 80 * GIB).token_bytes == 2 * 32 * 64 * 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("{", "not JSON"),
        ("[]", "is a JSON object"),
        ({}, "num_hidden_layers is missing (or n_layer"),
        (
            {"num_hidden_layers": 0, "hidden_size": 8},
            "num_hidden_layers must be a whole number from 1 on, not 0",
        ),
        ({"num_hidden_layers": True, "hidden_size": 8}, "not True"),
        ({"num_hidden_layers": 2, "hidden_size": 8}, "num_attention_heads is missing"),
        ({**LLAMA_8B, "num_attention_heads": 33}, "no multiple of num_attention_heads 33"),
        ({**LLAMA_8B, "num_key_value_heads": 5}, "no multiple of num_key_value_heads 5"),
        ({**LLAMA_8B, "torch_dtype": "float7"}, "'float7' is no type that is known"),
        ({**LLAMA_8B, "layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, fields: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model(tmp_path, fields)
    assert says in caught.value.message
    assert "config.json" in caught.value.message


def test_weights_that_do_not_fit_say_how_many_gpus_it_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel 4"):
        fit(model(tmp_path, LLAMA_70B), 48 * GIB)
