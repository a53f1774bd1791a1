"""The sizes of tiny multimodal models, by the keys of transformers' configurations."""

from typing import Any

from tests.support.reference_sizes import DELTA, GEMMA4, GRANITE, LATENT, LLAMA4, SIZES

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
_GLM_VISION = {**_QWEN_VISION, "out_hidden_size": 48, "image_size": 28}
_AUDIO = {
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "output_dim": 48,
}
_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
# The classes around these models leave out what their language models multiply logits by.
_COHERE2 = {**_TEXT, "model_type": "cohere2", "sliding_window": 7, "logit_scale": 1.0}
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
    "mllama": {
        "text_config": {**_TEXT, "cross_attention_layers": [1, 3], "pad_token_id": 0},
        "vision_config": {
            **_VISION,
            "model_type": "mllama_vision_model",
            "attention_heads": 2,
            "num_global_layers": 1,
            "intermediate_layers_indices": [0],
            "vision_output_dim": 64,
            "supported_aspect_ratios": [[1, 1]],
            "max_num_tiles": 1,
        },
        "image_token_index": 0,
    },
    "aria": {
        "text_config": {
            **_TEXT,
            "model_type": "aria_text",
            "intermediate_size": 24,
            "moe_num_experts": 5,
        },
        "vision_config": {**_VISION, "model_type": "idefics3_vision"},
        "image_token_index": 0,
        "projector_patch_to_query_dict": {4: 2},
    },
    "apertus1p5": {
        "text_config": {**_TEXT, "vocab_size": 101, "output_vocab_size": 97},
        "vision_config": {
            "codebook_size": 2,
            "embed_dim": 32,
            "latent_channels": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
        },
        "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 2},
        "image_token_id": 3,
        "audio_token_id": 4,
        "image_token_offset": 97,
        "audio_token_offset": 99,
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
        "text_config": {**_sections(1, 1, 0, mrope_interleaved=True), **DELTA},
        "vision_config": _QWEN3_5_VISION,
        **_QWEN_IDS,
    },
    "qwen3_5_moe": {
        "text_config": {
            **_sections(1, 1, 0, mrope_interleaved=True),
            **DELTA,
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
    "glm46v": {
        "text_config": _sections(1, 1, partial_rotary_factor=0.5),
        "vision_config": _GLM_VISION,
        "image_token_id": 0,
        "video_token_id": 0,
    },
    "glm4v_moe": {
        "text_config": {
            **_sections(1, 1, partial_rotary_factor=0.5),
            **_EXPERTS,
            "n_routed_experts": 6,
            "n_group": 2,
            "topk_group": 1,
        },
        "vision_config": _GLM_VISION,
        "image_token_id": 0,
        "video_token_id": 0,
    },
    "qwen3_vl_moe": {
        # Transformers finds out by the sizes of the file which axes of experts are exchanged.
        "text_config": {
            **_sections(2, 1, 1, mrope_interleaved=True),
            **_EXPERTS,
            "moe_intermediate_size": 20,
        },
        "vision_config": _QWEN3_VISION,
        **_QWEN_IDS,
    },
    "qwen2_5_omni_thinker": {
        "text_config": _sections(1, 1, 2),
        "vision_config": {**_QWEN_VISION, "out_hidden_size": 48, "fullatt_block_indexes": [0]},
        "audio_config": _AUDIO,
    },
    "qwen3_omni_moe_thinker": {
        "text_config": {**_sections(2, 1, 1, mrope_interleaved=True), **_EXPERTS},
        "vision_config": _QWEN3_VISION,
        "audio_config": {**_AUDIO, "downsample_hidden_size": 16},
    },
    "qwen2_audio": {
        "text_config": {**_TEXT, "model_type": "qwen2"},
        "audio_config": {**_AUDIO, "model_type": "qwen2_audio_encoder"},
        "audio_token_index": 0,
    },
    "lfm2_vl": {
        "text_config": {
            **_TEXT,
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
        "vision_config": _VISION,
        "image_token_id": 0,
    },
    "lfm3_vl": {
        "text_config": {
            **_TEXT,
            "model_type": "lfm3",
            "layer_types": ["conv", "conv", "full_attention", "sliding_attention"],
        },
        "vision_config": {**_QWEN_VISION, "out_hidden_size": 48, "num_attention_heads": 2},
        "image_token_id": 0,
        "video_token_id": 0,
        "projector_hidden_size": 32,
    },
    "kimi_k25": {
        "text_config": {
            **_TEXT,
            **LATENT,
            **_EXPERTS,
            "model_type": "deepseek_v3",
            "n_routed_experts": 6,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 8,
        },
        "vision_config": {**_VISION, "pos_emb_height": 4, "pos_emb_width": 4},
        "image_token_id": 0,
        "video_token_id": 0,
        "projection_hidden_size": 32,
    },
    "aya_vision": {
        "text_config": _COHERE2,
        "vision_config": _VISION,
        "image_token_index": 0,
    },
    "cohere2_vision": {
        "text_config": _COHERE2,
        "vision_config": _VISION,
        "image_token_id": 0,
        "alignment_intermediate_size": 32,
    },
    "llava_onevision": {
        "text_config": {**_TEXT, "model_type": "qwen2"},
        "vision_config": _VISION,
        "image_token_index": 0,
        "video_token_index": 0,
    },
    "llava_next_video": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _CLIP,
        "image_token_index": 0,
        "video_token_index": 0,
    },
    "idefics2": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": _VISION,
        "image_token_id": 0,
        "perceiver_config": {"resampler_n_latents": 2, "resampler_depth": 1, "hidden_size": 48},
    },
    "ovis2": {
        "text_config": {**_TEXT, "model_type": "qwen2"},
        "vision_config": {**_VISION, "vocab_size": 32},
        "image_token_id": 0,
        "visual_indicator_token_ids": [1, 2, 3, 4, 5],
        "vocab_size": 97,
        "hidden_size": 48,
    },
    "deepseek_vl": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": _VISION,
        "image_token_id": 0,
    },
    "exaone4_5": {
        "text_config": {**_TEXT, "model_type": "exaone4", "sliding_window": 7},
        "vision_config": {
            **_QWEN_VISION,
            "num_key_value_heads": 2,
            "out_hidden_size": 48,
            "fullatt_block_indexes": [0],
        },
        "image_token_id": 0,
        "video_token_id": 0,
    },
    "hyperclovax_vision_v2": {
        "text_config": {
            **_TEXT,
            **GRANITE,
            "residual_multiplier": 1.0,
            "model_type": "hyperclovax",
        },
        "vision_config": {**_QWEN_VISION, "out_hidden_size": 48, "fullatt_block_indexes": [0]},
        "image_token_id": 0,
        "video_token_id": 0,
    },
    "minicpmv4_6": {
        "text_config": {**_sections(1, 1, 0), **DELTA, "model_type": "qwen3_5_text"},
        "vision_config": {**_VISION, "insert_layer_id": 0},
        "insert_layer_id": 0,
        "image_token_id": 0,
        "video_token_id": 0,
    },
    "voxtral": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "audio_config": {
            "vocab_size": 97,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "audio_token_id": 0,
        "hidden_size": 48,
    },
    "granite_speech": {
        "text_config": {**_TEXT, **GRANITE, "logits_scaling": 1.0, "model_type": "granite"},
        "encoder_config": {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "output_dim": 16},
        "projector_config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "encoder_hidden_size": 32,
            "model_type": "blip_2_qformer",
        },
        "audio_token_index": 0,
    },
    "phi4_multimodal": {
        **_TEXT,
        "partial_rotary_factor": 0.75,
        "sliding_window": None,
        "vision_config": {**_VISION, "crop_size": 28},
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "nemo_conv_channels": 8,
            "ext_pw_out_channel": 32,
        },
    },
}
