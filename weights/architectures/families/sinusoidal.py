"""XGLM and CTRL: sinusoidal position embeddings.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.bloom_falcon_opt import OPT_LAYER
from swiftchat.weights.architectures.families.gpt import GPT_KEYS
from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    number,
)

_XGLM_OFFSET = 2


def _sinusoidal(config: Fields, divisor: int, offset: int) -> dict[str, Any]:
    if hidden_size(config) % 2 or divisor < 1:
        raise invalid("hidden_size", "an even number above 2", hidden_size(config))
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "num_kv_heads": num_heads(config),
        "rope": None,
        "learned_positions": integer(config, "max_position_embeddings", 1, MAX_CONTEXT) + offset,
        "position_offset": offset,
        "sinusoidal_divisor": divisor,
        "embedding_scale": hidden_size(config) ** 0.5,
    }


def _xglm(config: Fields) -> Mapping[str, Any]:
    # The embedding of the padding's position is zero.
    pad = config.get("pad_token_id")
    if isinstance(pad, int) and pad >= _XGLM_OFFSET:
        raise invalid("pad_token_id", f"less than {_XGLM_OFFSET}", pad)
    fields = _sinusoidal(config, hidden_size(config) // 2 - 1, _XGLM_OFFSET)
    scale = fields["embedding_scale"] if flag(config, "scale_embedding") else 1.0
    return {**fields, "norm_eps": 1e-5, "embedding_scale": scale}


def _ctrl(config: Fields) -> Mapping[str, Any]:
    # The norms of the layers have a fixed epsilon, the last one that of the config.
    eps = number(config, "rms_norm_eps", above=0.0, below=1.0)
    if eps != 1e-6:
        raise invalid("layer_norm_epsilon", "1e-06", eps)
    fields = _sinusoidal(config, hidden_size(config) // 2, 0)
    return {**fields, "activation": "relu", "lm_head_bias": True}


SINUSOIDAL: Mapping[str, Architecture] = {
    "XGLMForCausalLM": Architecture(
        name="xglm",
        model_type="xglm",
        overrides=_xglm,
        renamed=frozen(
            hidden_size="d_model",
            intermediate_size="ffn_dim",
            num_hidden_layers="num_layers",
            num_attention_heads="attention_heads",
            hidden_act="activation_function",
        ),
        supported_keys=frozenset({"scale_embedding"}),
        rejected_keys=frozenset({"add_cross_attention"}),
        prefix="model.",
        tensors=tensor_names(
            OPT_LAYER,
            embed="model.embed_tokens.weight",
            final_norm="model.layer_norm.weight",
            final_norm_bias="model.layer_norm.bias",
            lm_head="lm_head.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            activation_function="gelu",
            scale_embedding=True,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "CTRLLMHeadModel": Architecture(
        name="ctrl",
        model_type="ctrl",
        overrides=_ctrl,
        renamed=frozen(**{**GPT_KEYS, "intermediate_size": "dff"}),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "q": "multi_head_attention.Wq.weight",
                "k": "multi_head_attention.Wk.weight",
                "v": "multi_head_attention.Wv.weight",
                "o": "multi_head_attention.dense.weight",
                "q_bias": "multi_head_attention.Wq.bias",
                "k_bias": "multi_head_attention.Wk.bias",
                "v_bias": "multi_head_attention.Wv.bias",
                "o_bias": "multi_head_attention.dense.bias",
                "up": "ffn.0.weight",
                "up_bias": "ffn.0.bias",
                "down": "ffn.2.weight",
                "down_bias": "ffn.2.bias",
                "attn_norm": "layernorm1.weight",
                "attn_norm_bias": "layernorm1.bias",
                "mlp_norm": "layernorm2.weight",
                "mlp_norm_bias": "layernorm2.bias",
            },
            embed="transformer.w.weight",
            final_norm="transformer.layernorm.weight",
            final_norm_bias="transformer.layernorm.bias",
            lm_head="lm_head.weight",
            lm_head_bias="lm_head.bias",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            n_positions=256,
            dff=8192,
            layer_norm_epsilon=1e-6,
            tie_word_embeddings=True,
        ),
    ),
}
