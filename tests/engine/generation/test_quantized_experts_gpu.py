"""Quantized experts on a GPU: they stay packed, and decode steps are captured."""

import json
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from tests.support import tiny
from tests.support.gpu_engines import decode_logits, gpu_engine

pytestmark = pytest.mark.gpu
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "max_position_embeddings": 1024,
    "rope_theta": 10_000.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.mark.parametrize("scheme", ["int4", "int8", "fp8", "mxfp4", "nvfp4"])
def test_decode_steps_equal_a_prompt_with_dequantized_experts(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    config = {"dummy": f"{path}:{scheme}", "dtype": "bfloat16", "ctx_size_tokens": 512}
    engine = gpu_engine(tmp_path, tmp_path / "cubins", **config)
    for layer in engine.decoder.weights.layers:
        assert layer.experts is not None
        assert all(isinstance(each.gate_up, GpuQuantizedWeight) for each in layer.experts.each)
    ids = tiny.random_ids(90, seed=5)
    prompt = decode_logits(engine, ids)
    engine = gpu_engine(tmp_path, tmp_path / "cubins", chunk_tokens=1, **config)
    steps = decode_logits(engine, ids)
    assert torch.linalg.norm(steps - prompt) <= 0.06 * torch.linalg.norm(prompt)
    greedy = SamplingParams(temperature=0, max_tokens=12)
    tiny.run(engine, {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}, greedy)
    assert engine.stats()["graph_steps"] > 0
