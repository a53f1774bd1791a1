"""Published configs of Gemma 4's language models: `DUMMY_CONFIGS` has them too.

Sizes: those by which transformers' `convert_gemma4_weights.py` writes the published files.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SHARED = {
    "architectures": ["Gemma4ForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 262_144,
    "head_dim": 256,
    "global_head_dim": 512,
    "final_logit_softcapping": 30.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_SMALL = {
    **_SHARED,
    "num_attention_heads": 8,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "sliding_window": 512,
    "max_position_embeddings": 131_072,
}
_LARGE = {
    **_SHARED,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
}

# The published `config.json` fields by name. Without `layer_types` every sixth layer is a full one.
GEMMA4_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gemma-4-e2b": {
            **_SMALL,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_hidden_layers": 35,
            "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
        },
        "gemma-4-e4b": {
            **_SMALL,
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 42,
            "num_key_value_heads": 2,
            "num_kv_shared_layers": 18,
        },
        "gemma-4-26b-a4b": {
            **_LARGE,
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_hidden_layers": 30,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
        "gemma-4-31b": {
            **_LARGE,
            "hidden_size": 5376,
            "intermediate_size": 21_504,
            "num_hidden_layers": 60,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "num_global_key_value_heads": 4,
        },
    }
)
