"""RecurrentGemma: real-gated linear recurrent units, and windowed attention in every third layer.

Defaults and overrides are those of the model class in transformers.
"""

import struct
from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, tensor_names
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mixers import RgLru
from swiftchat.weights.architectures.parts.rope import RopeConfig

_KINDS = frozen(recurrent="linear_attention", attention="full_attention")


def _recurrent_gemma(config: Fields) -> Mapping[str, Any]:
    pattern, count, heads = config.get("block_types"), num_layers(config), num_heads(config)
    if not isinstance(pattern, list) or not pattern or len(pattern) > 2048:
        raise invalid("block_types", "a list of recurrent and attention", pattern)
    kinds = [str(pattern[i % len(pattern)]) for i in range(count)]
    hidden = hidden_size(config)
    width = optional_integer(config, "lru_width", 1, MAX_WIDTH) or hidden
    for name, size in (("hidden_size", hidden), ("lru_width", width)):
        if size % heads:
            raise invalid(name, f"a multiple of {heads} heads", size)
    return {
        "num_kv_heads": optional_integer(config, "num_key_value_heads", 1, MAX_HEADS) or heads,
        "head_dim": hidden // heads,
        "intermediate_size": integer(config, "intermediate_size", 2, MAX_WIDTH) // 2,
        "attention_bias": flag(config, "attention_bias"),
        "output_bias": True,
        "mlp_bias": True,
        "norm_unit_offset": True,
        "sliding_window": integer(config, "sliding_window", 1, MAX_CONTEXT),
        "rope": RopeConfig.from_hf(config, hidden // heads),
        "embedding_scale": _bf16(hidden**0.5),
        "logit_softcap": number(config, "logits_soft_cap", above=0.0, below=1e6),
        "mixer": RgLru(width, heads, integer(config, "conv1d_width", 2, MAX_KERNEL)),
        "mixer_layers": mixer_layers(
            config, [_KINDS.get(kind, kind) for kind in kinds], "linear_attention"
        ),
    }


def _bf16(value: float) -> float:
    """Round to nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", rounded))[0])


_LAYER = {
    **{name: f"temporal_block.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"temporal_block.{name}_proj.bias" for name in "qkvo"},
    **{name: f"mlp_block.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{f"{name}_bias": f"mlp_block.{name}_proj.bias" for name in ("gate", "up", "down")},
    "attn_norm": "temporal_pre_norm.weight",
    "mlp_norm": "channel_pre_norm.weight",
    "mixer_x_in": "temporal_block.linear_x.weight",
    "mixer_x_in_bias": "temporal_block.linear_x.bias",
    "mixer_y_in": "temporal_block.linear_y.weight",
    "mixer_y_in_bias": "temporal_block.linear_y.bias",
    "mixer_conv": "temporal_block.conv_1d.weight",
    "mixer_conv_bias": "temporal_block.conv_1d.bias",
    "mixer_gate": "temporal_block.rg_lru.input_gate_weight",
    "mixer_gate_bias": "temporal_block.rg_lru.input_gate_bias",
    "mixer_step": "temporal_block.rg_lru.recurrent_gate_weight",
    "mixer_step_bias": "temporal_block.rg_lru.recurrent_gate_bias",
    "mixer_decay": "temporal_block.rg_lru.recurrent_param",
    "mixer_out": "temporal_block.linear_out.weight",
    "mixer_out_bias": "temporal_block.linear_out.bias",
}

RECURRENT_GEMMA: Mapping[str, Architecture] = {
    "RecurrentGemmaForCausalLM": Architecture(
        name="recurrent_gemma",
        model_type="recurrent_gemma",
        overrides=_recurrent_gemma,
        supported_keys=frozenset({"partial_rotary_factor", "sliding_window"}),
        renamed=frozen(hidden_act="hidden_activation", sliding_window="attention_window_size"),
        tensors=tensor_names(
            _LAYER,
            embed="model.embed_tokens.weight",
            final_norm="model.final_norm.weight",
            lm_head="lm_head.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=8192,
            rms_norm_eps=1e-6,
            hidden_activation="gelu_pytorch_tanh",
            partial_rotary_factor=0.5,
            block_types=["recurrent", "recurrent", "attention"],
            attention_window_size=2048,
            conv1d_width=4,
            logits_soft_cap=30.0,
            tie_word_embeddings=True,
            bos_token_id=2,
            eos_token_id=1,
        ),
    ),
}
