"""OpenBMB: MiniCPM."""

import math

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    Architectures,
    frozen,
)
from swiftchat.weights.architectures.parts.fields import number, optional_number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    DENSE_TENSORS,
    LATENT_KEYS,
    latent_attention,
)
from swiftchat.weights.architectures.parts.layers import Layers
from swiftchat.weights.architectures.parts.model import ModelConfig


def _minicpm3(keys: Keys) -> ModelConfig:
    if keys.get("v_head_dim") is None:
        keys = keys.changed(v_head_dim=keys.hidden_size // keys.num_heads)
    attention = latent_attention(keys, interleaved=False)
    return _model(keys, keys.layers(attention=attention))


def _model(keys: Keys, layers: Layers) -> ModelConfig:
    """Return the model of these layers, with the scales of all MiniCPM models."""
    depth = optional_number(keys, "scale_depth", above=0.0, below=1e6)
    base = optional_number(keys, "dim_model_base", above=0.0, below=1e9)
    residual = 1.0 if depth is None else depth / math.sqrt(keys.num_layers)
    scale = number(keys, "scale_emb", above=0.0, below=1e6)
    return keys.model(
        layers,
        norm=keys.norm(eps=keys.eps / residual**2),
        embeddings=keys.embeddings(scale=scale),
        head=keys.head(scale=1.0 if base is None else base / keys.hidden_size),
        residual_scale=residual,
    )


def _minicpm(keys: Keys) -> ModelConfig:
    # Sparse attention of long contexts (`sparse_config`) is computed as full attention.
    return _model(keys, keys.layers(mlp=keys.mlp(bias=False)))


ARCHITECTURES: Architectures = {
    "MiniCPM3ForCausalLM": Architecture(
        model_type="minicpm3",
        build=_minicpm3,
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
        model_type="minicpm",
        build=_minicpm,
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
