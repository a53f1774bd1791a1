"""Names of keys and tensors that models like GPT share."""

from swiftchat.weights.architectures.parts.architecture import frozen
from swiftchat.weights.architectures.parts.fields import MAX_WIDTH, integer
from swiftchat.weights.architectures.parts.keys import Keys


def mlp_width(keys: Keys, name: str | None) -> int:
    """Read the MLP's width from the field `name`; four times the hidden size if absent."""
    if name is not None and keys.get(name) is not None:
        return integer(keys, name, 1, MAX_WIDTH)
    return 4 * integer(keys, "hidden_size", 1, MAX_WIDTH // 4)


# The layers of GPT-NeoX; Falcon, BLOOM and ChatGLM-6B use the same names.
NEOX_LAYER = {
    "qkv": "attention.query_key_value.weight",
    "qkv_bias": "attention.query_key_value.bias",
    "o": "attention.dense.weight",
    "o_bias": "attention.dense.bias",
    "up": "mlp.dense_h_to_4h.weight",
    "up_bias": "mlp.dense_h_to_4h.bias",
    "down": "mlp.dense_4h_to_h.weight",
    "down_bias": "mlp.dense_4h_to_h.bias",
    "attn_norm": "input_layernorm.weight",
    "attn_norm_bias": "input_layernorm.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "mlp_norm_bias": "post_attention_layernorm.bias",
}

BLOOM_LAYER = {
    name: rest.replace("attention.", "self_attention.") if rest.startswith("attention.") else rest
    for name, rest in NEOX_LAYER.items()
}

GPT_KEYS = frozen(
    hidden_size="n_embd",
    num_hidden_layers="n_layer",
    num_attention_heads="n_head",
    max_position_embeddings="n_positions",
    intermediate_size="n_inner",
    rms_norm_eps="layer_norm_epsilon",
    hidden_act="activation_function",
)
