"""Ai2: OLMo.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import EXPERTS, MOE_KEYS, moe_overrides
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.layer_readers import OUTPUT_NORMS, every_nth_full
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.rope import layer_ropes
from swiftchat.weights.architectures.parts.router import RouterConfig


def _olmo_hybrid(config: Fields) -> Mapping[str, Any]:
    kinds, count = layer_types(config), num_layers(config)
    if kinds is None:
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(count)]
        if "full_attention" not in kinds:
            kinds[-1] = "full_attention"
    heads = num_heads(config)
    keys = optional_integer(config, "linear_num_key_heads", 1, MAX_HEADS) or heads
    values = optional_integer(config, "linear_num_value_heads", 1, MAX_HEADS) or heads
    if values % keys:
        raise invalid("linear_num_value_heads", f"a multiple of {keys} key heads", values)
    key_dim = optional_integer(config, "linear_key_head_dim", 1, MAX_HEAD_DIM)
    key_dim = int(0.75 * hidden_size(config) / keys) if key_dim is None else key_dim
    value_dim = optional_integer(config, "linear_value_head_dim", 1, MAX_HEAD_DIM) or 2 * key_dim
    layers = mixer_layers(config, kinds, "linear_attention")
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 1e4))
    return {
        "mlp_bias": False,
        "qk_norm": "width",
        "output_norm_layers": frozenset(range(count)) - layers,
        "mixer": GatedDelta(
            num_key_heads=keys,
            num_value_heads=values,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=integer(config, "linear_conv_kernel_dim", 2, MAX_KERNEL),
            norm_eps=1e-5,
            by_key_head=False,
            split=True,
            beta_scale=2.0 if flag(config, "linear_allow_neg_eigval") else 1.0,
        ),
        "mixer_layers": layers,
        # A base of null, as in published models: no rotation.
        **({"rope": None} if theta is None else {}),
    }


def _olmo2(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "norm_order": "output", "qk_norm": "width"}


def _olmo(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm": "layer",
        "norm_weights": False,
        "norm_eps": 1e-5,
        "clip_qkv": optional_number(config, "clip_qkv", above=0.0, below=1e6),
    }


def _olmo3(config: Fields) -> Mapping[str, Any]:
    head_dim = hidden_size(config) // num_heads(config)
    return {
        "mlp_bias": False,
        "norm_order": "output",
        "qk_norm": "width",
        **layer_ropes(config, head_dim, 5e5),
        "layer_types": every_nth_full(config, 4),
    }


def _olmoe(config: Fields) -> Mapping[str, Any]:
    return {
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
        "router": RouterConfig(normalized=flag(config, "norm_topk_prob")),
        "qk_norm": "width",
    }


def _flex_olmo(config: Fields) -> Mapping[str, Any]:
    return {**_olmoe(config), "norm_order": "output"}


_OLMO_MIXER = {
    "mixer_q": "linear_attn.q_proj.weight",
    "mixer_k": "linear_attn.k_proj.weight",
    "mixer_v": "linear_attn.v_proj.weight",
    "mixer_z": "linear_attn.g_proj.weight",
    "mixer_b": "linear_attn.b_proj.weight",
    "mixer_a": "linear_attn.a_proj.weight",
    "mixer_conv_q": "linear_attn.q_conv1d.weight",
    "mixer_conv_k": "linear_attn.k_conv1d.weight",
    "mixer_conv_v": "linear_attn.v_conv1d.weight",
    "mixer_decay": "linear_attn.A_log",
    "mixer_step_bias": "linear_attn.dt_bias",
    "mixer_norm": "linear_attn.o_norm.weight",
    "mixer_out": "linear_attn.o_proj.weight",
    "attn_norm": "attention_layer_norm.weight",
    "mlp_norm": "feedforward_layer_norm.weight",
}

_OLMO_DEFAULTS = frozen(max_position_embeddings=4096, norm_topk_prob=False)


ALLENAI: Mapping[str, Architecture] = {
    "OlmoHybridForCausalLM": Architecture(
        name="olmo_hybrid",
        model_type="olmo_hybrid",
        overrides=_olmo_hybrid,
        tensors=llama_tensors({**OUTPUT_NORMS, **_OLMO_MIXER}),
        defaults=frozen(
            max_position_embeddings=65_536,
            rms_norm_eps=1e-6,
            intermediate_size=11_008,
            linear_conv_kernel_dim=4,
            linear_allow_neg_eigval=True,
            eos_token_id=100_257,
        ),
    ),
    "Olmo2ForCausalLM": Architecture(
        name="olmo2",
        model_type="olmo2",
        overrides=_olmo2,
        tensors=llama_tensors(
            {
                "attn_out_norm": "post_attention_layernorm.weight",
                "mlp_out_norm": "post_feedforward_layernorm.weight",
            }
        ),
        defaults=frozen(max_position_embeddings=2048, rms_norm_eps=1e-5, eos_token_id=50_279),
    ),
    "OlmoForCausalLM": Architecture(
        name="olmo",
        model_type="olmo",
        overrides=_olmo,
        supported_keys=frozenset({"clip_qkv"}),
        tensors=LLAMA_TENSORS,
        defaults=frozen(max_position_embeddings=2048, eos_token_id=50_279),
    ),
    "Olmo3ForCausalLM": Architecture(
        name="olmo3",
        model_type="olmo3",
        overrides=_olmo3,
        windowed=True,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            sliding_window=4096,
            rope_theta=5e5,
            eos_token_id=50_279,
        ),
    ),
    "OlmoeForCausalLM": Architecture(
        name="olmoe",
        model_type="olmoe",
        overrides=_olmoe,
        supported_keys=MOE_KEYS,
        rejected_keys=frozenset({"clip_qkv"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(EXPERTS),
        defaults=frozen(
            **_OLMO_DEFAULTS,
            rms_norm_eps=1e-5,
            num_local_experts=64,
            num_experts_per_tok=8,
            eos_token_id=50_279,
        ),
    ),
    "FlexOlmoForCausalLM": Architecture(
        name="flex_olmo",
        model_type="flex_olmo",
        overrides=_flex_olmo,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **OUTPUT_NORMS}),
        defaults=frozen(
            **_OLMO_DEFAULTS,
            rms_norm_eps=1e-6,
            num_local_experts=7,
            num_experts_per_tok=5,
            rope_theta=5e5,
            eos_token_id=100_257,
        ),
    ),
}
