"""The sizes of tiny models, by the keys of transformers' configurations."""

from typing import Any

ABSENT = object()  # leaves a key out

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
    "head_dim": 8,
    "num_experts": 5,
    "num_local_experts": 5,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 7,
}

GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 2.0,
}
# Every part of a head has a width of its own.
LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
}
_HYBRID = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_proj_bias": True,
}
_DELTA: dict[str, Any] = {
    "layer_types": _HYBRID,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "partial_rotary_factor": 0.5,
}
INDEX: dict[str, Any] = {"index_n_heads": 16, "index_head_dim": 12, "index_topk": 5}
# As the small models, with experts: two full layers, of which the second shares the keys.
GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 97,
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "sliding_window": 7,
    "final_logit_softcapping": 5.0,
}
# One layer of four without rotation, one of two without experts; queries grow from token 4 on.
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "intermediate_size_mlp": 80,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 1, 0, 1],
    "attention_chunk_size": 7,
    "floor_scale": 4,
    "attn_scale": 0.3,
    "num_experts_per_tok": 2,
}
GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "intermediate_size": [80, 80, 80, 80, 64, 64],
    "activation_sparsity_pattern": [0.7, 0.4, 0.0, 0.0, 0.0, 0.0],
    "num_kv_shared_layers": 2,
    "altup_num_inputs": 3,
    "laurel_rank": 10,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 90,
    "final_logit_softcapping": 5.0,
}
# What an architecture needs beyond them.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "gemma3n_text": GEMMA3N,
    "gemma4_text": GEMMA4,
    "llama4_text": LLAMA4,
    "gemma4_unified_text": GEMMA4,
    "codegen": {"num_attention_heads": 4, "rotary_dim": 4},
    "dots1": {
        "moe_intermediate_size": 24,
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "n_shared_experts": 1,
        "layer_types": None,
    },
    "deepseek_v2": {
        **LATENT,
        "num_experts": 6,
        "topk_method": "group_limited_greedy",
        "n_group": 3,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
    },
    "deepseek_v3": {**LATENT, "num_local_experts": 6, "n_group": 3, "topk_group": 2},
    "deepseek_v32": {**LATENT, "num_local_experts": 6, "n_group": 3, "topk_group": 2, **INDEX},
    "glm_moe_dsa": {**LATENT, **INDEX},
    "glm4_moe_lite": {**LATENT, "n_group": 1, "topk_group": 1},
    "mistral4": {
        **LATENT,
        "head_dim": ABSENT,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 8,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "youtu": {**LATENT, "q_lora_rank": None, "attention_bias": True},
    "minicpm3": {**LATENT, "v_head_dim": 8, "dim_model_base": 24},
    "falcon": {"head_dim": ABSENT},
    "mpt": {
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 4,
        "attn_config": {"clip_qkv": 0.8},
    },
    "mellum": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "gptj": {"rotary_dim": 4},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "granitemoeshared": {**GRANITE, "shared_intermediate_size": 40},
    "hyperclovax": {**GRANITE, "residual_multiplier": 1.0},
    "cohere": {"use_qk_norm": True},
    "olmo": {"clip_qkv": 0.8},
    "glm4_moe": {"n_group": 2, "topk_group": 1, "num_local_experts": 6, "use_qk_norm": True},
    "phi3": {"sliding_window": 7},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.1,
        }
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
    },
    "qwen3_next": {**_DELTA, "norm_topk_prob": True, "shared_expert_intermediate_size": 40},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, "shared_expert_intermediate_size": 40},
    "granitemoehybrid": {
        **GRANITE,
        **_MAMBA,
        "layer_types": _HYBRID,
        "shared_intermediate_size": 40,
        "position_embedding_type": "rope",
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [2]},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 6,
        "n_groups": 2,
        "ssm_state_size": 12,
        "num_local_experts": 6,
        "n_group": 2,
        "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": 32,
        "routed_scaling_factor": 1.5,
        "use_bias": True,
        "time_step_min": 0.6,
    },
    "falcon_h1": {
        **_MAMBA,
        "mamba_d_ssm": 64,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "projectors_bias": True,
        "ssm_multipliers": [0.7, 1.2, 0.6, 1.5, 0.8],
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.4,
        "mlp_multipliers": [0.6, 0.5],
        "key_multiplier": 0.4,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.8,
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.3,
    },
    "mamba": {"state_size": 6, "use_bias": True},
    "falcon_mamba": {"state_size": 6, "time_step_rank": 5},
    "mamba2": {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 6, "use_bias": True},
    "kolibri1": {"shared_expert_intermediate_size": 40},
    "flint": {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    "granite_swa": {**GRANITE, "layer_rope_theta": [0, 300.0, 300.0, 300.0]},
    "granitemoe_swa": {
        **GRANITE,
        "shared_intermediate_size": 40,
        "layer_rope_theta": [900.0, 300.0, 0, 300.0],
    },
    "xglm": {"d_model": 48, "ffn_dim": 80, "num_layers": 4, "attention_heads": 6},
    "ctrl": {"n_embd": 48, "dff": 80, "n_layer": 4, "n_head": 6, "n_positions": 256},
    "jamba": {
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_proj_bias": True,
    },
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "dbrx": {
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 4,
        "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 500.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 2},
    },
    "gpt_neo": {
        "hidden_size": 48,
        "num_heads": 6,
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 7,
    },
}

_TEXT: dict[str, Any] = {
    key: SIZES[key]
    for key in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "initializer_range",
        "head_dim",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    )
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_CLIP = {**_VISION, "model_type": "clip_vision_model", "projection_dim": 16}
_QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
_QWEN3_VISION = {
    **_QWEN_VISION,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}
_QWEN3_5_VISION = {
    **_QWEN_VISION,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}
_QWEN_IDS = {
    "image_token_id": 0,
    "video_token_id": 0,
    "vision_start_token_id": 1,
    "vision_end_token_id": 2,
}


def _sections(*sections: int, **rope: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [*sections], **rope}
    return {**_TEXT, "rope_parameters": rope}


# Multimodal models: a language model and a vision part that no test runs.
MULTIMODAL_SIZES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**_TEXT, "sliding_window": 7, "query_pre_attn_scalar": 24},
        "vision_config": _VISION,
        "mm_tokens_per_image": 4,
        "image_token_index": 0,
        "boi_token_index": 1,
        "eoi_token_index": 2,
    },
    "gemma4": {
        "text_config": {**_TEXT, **GEMMA4, "enable_moe_block": False},
        "vision_config": {**_VISION, "num_key_value_heads": 2, "head_dim": 16},
        "image_token_id": 0,
    },
    "gemma4_unified": {
        "text_config": {**_TEXT, **GEMMA4},
        "vision_config": {"patch_size": 4, "num_soft_tokens": 4},
        "image_token_id": 0,
    },
    "llama4": {
        "text_config": {**_TEXT, **LLAMA4, "num_local_experts": 5, "num_experts_per_tok": 1},
        "vision_config": {**_VISION, "vision_output_dim": 16, "projector_input_dim": 16},
        "image_token_index": 0,
    },
    "qwen2_vl": {
        "text_config": _sections(1, 1, 2),
        "vision_config": {
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": 48,
            "num_heads": 2,
            "mlp_ratio": 1,
        },
        **_QWEN_IDS,
    },
    "qwen2_5_vl": {
        "text_config": _sections(1, 1, 2),
        "vision_config": {**_QWEN_VISION, "out_hidden_size": 48, "fullatt_block_indexes": [0]},
        **_QWEN_IDS,
    },
    "qwen3_5": {
        "text_config": {**_sections(1, 1, 0, mrope_interleaved=True), **_DELTA},
        "vision_config": _QWEN3_5_VISION,
        **_QWEN_IDS,
    },
    "qwen3_5_moe": {
        "text_config": {
            **_sections(1, 1, 0, mrope_interleaved=True),
            **_DELTA,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
        "vision_config": _QWEN3_5_VISION,
        **_QWEN_IDS,
    },
    "qwen3_vl": {
        "text_config": _sections(2, 1, 1, mrope_interleaved=True),
        "vision_config": _QWEN3_VISION,
        **_QWEN_IDS,
    },
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 16},
        "image_token_index": 0,
    },
    "llava": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _CLIP,
        "image_token_index": 0,
    },
    "llava_next": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": _CLIP,
        "image_token_index": 0,
    },
    "internvl": {
        "text_config": {**_TEXT, "model_type": "qwen2"},
        "vision_config": {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
        "image_token_id": 0,
    },
    "idefics3": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _VISION,
        "image_token_id": 0,
    },
    "smolvlm": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _VISION,
        "image_token_id": 0,
    },
    "glm4v": {
        "text_config": _sections(1, 1, partial_rotary_factor=0.5),
        "vision_config": {
            **_QWEN_VISION,
            "out_hidden_size": 48,
            "image_size": 28,
        },
        "image_token_id": 0,
        "video_token_id": 0,
    },
}
