"""Doge: keys have biases, functions of the values, and the stream has weights.

Defaults and overrides are those of the model class in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    Fields,
    flag,
    integer,
    invalid,
    optional_integer,
)


def _doge(config: Fields) -> Mapping[str, Any]:
    if flag(config, "is_moe"):  # its router mixes the tokens of a prompt
        raise invalid("is_moe", "false", True)
    context = integer(config, "max_position_embeddings", 1, MAX_CONTEXT)
    kept = integer(config, "keep_window_size", 1, MAX_CONTEXT)
    bias = flag(config, "attention_bias")
    return {
        "attention_bias": bias,
        "output_bias": bias,
        # Longer contexts would leave out the keys with the smallest biases.
        "max_context_tokens": min(context, kept),
        "sliding_window": optional_integer(config, "sliding_window", 1, MAX_CONTEXT),
        "qk_norm": "head",
        "key_biases": True,
        "stream_weights": True,
    }


DOGE: Mapping[str, Architecture] = {
    "DogeForCausalLM": Architecture(
        name="doge",
        model_type="doge",
        overrides=_doge,
        supported_keys=frozenset({"sliding_window", "num_experts"}),
        tensors=llama_tensors(
            {
                "key_bias": "self_attn.dt_proj.weight",
                "key_bias_bias": "self_attn.dt_proj.bias",
                "key_bias_rate": "self_attn.A",
                "attn_stream": "input_residual",
                "mlp_stream": "post_attention_residual",
            }
        ),
        defaults=frozen(
            vocab_size=32_768,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=32,
            num_attention_heads=8,
            max_position_embeddings=2048,
            keep_window_size=2048,
            rms_norm_eps=1e-6,
        ),
    ),
}
