"""convert of GGUF files: equal logits, and errors for invalid metadata."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from tests.support.gguf import tiny as tiny_gguf
from tests.support.same_logits import assert_same_logits
from tests.support.tiny_llama import entry_names, loaded, logits, tiny_llama

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_converted_gguf_has_equal_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_llama(**changes)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
    assert_same_logits(logits(loaded(tmp_path / "out")), logits(model))


def rope_divisors(scaling: dict[str, Any]) -> np.ndarray:
    config = transformers.LlamaConfig(
        hidden_size=64 * 4,
        num_attention_heads=4,
        rope_parameters=scaling,
        max_position_embeddings=8192 * 8,
    )
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1 / scaling["rope_theta"] ** (torch.arange(0, 64, 2) / 64)
    return (plain / scaled).numpy().astype(np.float32)


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3_ROPE,
        {**LLAMA3_ROPE, "factor": 32.0, "rope_theta": 500000.0},
        {**LLAMA3_ROPE, "low_freq_factor": 0.5, "high_freq_factor": 10.0},
        # Llama 4 Scout: no frequency is between.
        {**LLAMA3_ROPE, "factor": 16.0, "high_freq_factor": 1.0},
    ],
)
def test_llama3_rope_scaling_is_recovered(tmp_path: Path, scaling: dict[str, Any]) -> None:
    model = tiny_llama(
        hidden_size=256, head_dim=64, rope_parameters=scaling, max_position_embeddings=65536
    )
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, model, tensors={"rope_freqs.weight": rope_divisors(scaling)})
    convert(path, tmp_path / "out")
    rope = Model.open(tmp_path / "out").config.attention.rope
    assert rope.scaling.kind == "llama3"
    assert rope.scaling.factor == scaling["factor"]
    assert rope.scaling.low_freq_factor == pytest.approx(scaling["low_freq_factor"], rel=1e-3)
    assert rope.scaling.high_freq_factor == pytest.approx(scaling["high_freq_factor"], rel=1e-3)
    # Angles to 65,536 positions from parameters known to 1e-4 at worst.
    torch.testing.assert_close(
        logits(loaded(tmp_path / "out")), logits(model), rtol=1e-3, atol=1e-2
    )


def test_unknown_rope_divisors_raise_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    divisors = np.linspace(1, 3, 8, dtype=np.float32)
    tiny_gguf.write(path, tiny_llama(), tensors={"rope_freqs.weight": divisors})
    with pytest.raises(BadModelFile, match=r"rope_freqs.weight matches no known"):
        convert(path, tmp_path / "out")


def test_quantized_gguf_is_rounded_to_nearest_bfloat16(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    model = tiny_llama()
    tiny_gguf.write(tmp_path / "tiny.gguf", model, quantize=kind)
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if array.ndim == 2:
            array = gguf.dequantize(gguf.quantize(array, kind), kind)
        assert torch.equal(found[name], torch.from_numpy(array).to(torch.bfloat16)), name


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "lama"}, "unknown GGUF architecture 'lama'"),
        ({"llama.block_count": 10**9}, "num_hidden_layers"),
        ({"llama.block_count": 3}, r"blk.2.attn_q.weight: expected \[64, 64\], found nothing"),
        ({"llama.block_count": "two"}, "num_hidden_layers"),
        ({"llama.block_count": None}, "num_hidden_layers is missing"),
        ({"llama.attention.head_count": 0}, "num_attention_heads"),
        ({"llama.attention.head_count_kv": 4}, r"attn_k.weight: expected \[64, 64\], found"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps"),
        ({"llama.feed_forward_length": [96, 95]}, "intermediate_size"),
        ({"llama.rope.dimension_count": 8}, "partial_rotary_factor must be absent"),
        ({"llama.attention.value_length": 8}, "value_length differs"),
        ({"llama.rope.scaling.type": "spiral"}, "'spiral' is not supported"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"tokenizer.ggml.model": "bert"}, "unsupported kind 'bert'"),
        ({"tokenizer.ggml.pre": "klingon"}, "unknown GGUF pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.pre": ["smollm"]}, "tokenizer.ggml.pre is not a text"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": tiny_gguf.TOKENS[:-1]}, "token_type does not match"),
        ({"tokenizer.ggml.tokens": ["a"] * len(tiny_gguf.TOKENS)}, "are both 'a'"),
        ({"tokenizer.ggml.merges": ["a b", "q zz"]}, "merge 1, 'q zz'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 0"),
        ({"tokenizer.ggml.merges": [1, 2]}, "merges is missing or not a list"),
    ],
)
def test_invalid_metadata_raises_an_error(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(), metadata=dict(metadata))
    with pytest.raises(BadModelFile, match=message):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert entry_names(tmp_path) == ["tiny.gguf"]


def test_more_tokens_than_embeddings_raise_an_error(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama(vocab_size=len(tiny_gguf.TOKENS) - 1))
    with pytest.raises(BadModelFile, match="tokens, but 102 embeddings"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
