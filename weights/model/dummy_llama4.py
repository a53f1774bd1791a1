"""Published configs of Llama 4's language models: `DUMMY_CONFIGS` has them too."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SHARED = {
    "architectures": ["Llama4ForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 200_000,
    "eos_token_id": 200_001,
}

# The published `config.json` fields by name. Every fourth layer has no rotary embedding.
LLAMA4_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-4-scout": {
            **_SHARED,
            "num_local_experts": 16,
            "interleave_moe_layer_step": 1,
            "max_position_embeddings": 10_485_760,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        },
        "llama-4-maverick": {
            **_SHARED,
            "num_local_experts": 128,
            "interleave_moe_layer_step": 2,
            "max_position_embeddings": 1_048_576,
            "use_qk_norm": False,
        },
    }
)
