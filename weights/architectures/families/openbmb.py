"""OpenBMB: MiniCPM.

Defaults and overrides are those of the model classes in transformers.
"""

import math
from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
)
from swiftchat.weights.architectures.parts.fields import (
    Fields,
    flag,
    hidden_size,
    num_heads,
    num_layers,
    number,
    optional_number,
)
from swiftchat.weights.architectures.parts.latent_readers import (
    DENSE_TENSORS,
    LATENT_KEYS,
    latent_fields,
)


def _minicpm3(config: Fields) -> Mapping[str, Any]:
    if config.get("v_head_dim") is None:
        config = {**config, "v_head_dim": hidden_size(config) // num_heads(config)}
    return {**latent_fields(config, interleaved=False), **minicpm_multipliers(config)}


def minicpm_multipliers(config: Fields) -> Mapping[str, Any]:
    """Return the scales of embeddings, residuals and logits of all MiniCPM models."""
    depth = optional_number(config, "scale_depth", above=0.0, below=1e6)
    base = optional_number(config, "dim_model_base", above=0.0, below=1e9)
    residual = 1.0 if depth is None else depth / math.sqrt(num_layers(config))
    return {
        "embedding_scale": number(config, "scale_emb", above=0.0, below=1e6),
        "residual_scale": residual,
        "norm_eps": number(config, "rms_norm_eps", above=0.0, below=1.0) / residual**2,
        "logit_scale": 1.0 if base is None else base / hidden_size(config),
    }


def _minicpm(config: Fields) -> Mapping[str, Any]:
    # Sparse attention of long contexts (`sparse_config`) is computed as full attention.
    return {
        "attention_bias": flag(config, "attention_bias"),
        "mlp_bias": False,
        **minicpm_multipliers(config),
    }


OPENBMB: Mapping[str, Architecture] = {
    "MiniCPM3ForCausalLM": Architecture(
        name="minicpm3",
        model_type="minicpm3",
        overrides=_minicpm3,
        supported_keys=LATENT_KEYS,
        tensors=DENSE_TENSORS,
        defaults=frozen(
            kv_lora_rank=256,
            q_lora_rank=768,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            max_position_embeddings=32_768,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            scale_emb=12,
            scale_depth=1.4,
            dim_model_base=256,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MiniCPMForCausalLM": Architecture(
        name="minicpm",
        model_type="minicpm",
        overrides=_minicpm,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            scale_emb=1,
            scale_depth=1,
            dim_model_base=1,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
