"""Kimi Linear, Ling 3.0 and OLMo Hybrid: variants of gated DeltaNet, and some layers of attention.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.deepseek import (
    LATENT_KEYS,
    LATENT_TENSORS,
    latent_fields,
    v3_experts,
)
from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.families.llama_like import OUTPUT_NORMS
from swiftchat.weights.architectures.families.moe import (
    MIXTRAL_EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    listed_dense,
)
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mixers import GatedDelta, KimiDelta


def _kimi_kinds(config: Fields, listed: Fields) -> list[str]:
    """Return the kinds of the layers; published files count them from 1."""
    kinds, count = layer_types(config), num_layers(config)
    if kinds is not None:
        return kinds
    if "full_attn_layers" not in listed or "kda_layers" not in listed:
        return ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(count)]
    found = dict.fromkeys(range(count), "")
    for name, kind in (("full_attn_layers", "full_attention"), ("kda_layers", "linear_attention")):
        layers = listed[name]
        if not isinstance(layers, list) or len(layers) > count:
            raise invalid(name, f"a list of at most {count} numbers", layers)
        for layer in layers:
            found[integer({name: layer}, name, 1, count) - 1] = kind
    return list(found.values())


def _kimi_linear(config: Fields) -> Mapping[str, Any]:
    own = mapping(config, "linear_attn_config") or {}
    sizes = {
        "linear_head_dim": own.get("head_dim"),
        "linear_num_heads": own.get("num_heads"),
        "linear_conv_kernel_dim": own.get("short_conv_kernel_size"),
    }
    sizes = {**config, **{name: value for name, value in sizes.items() if value is not None}}
    mixer = KimiDelta(
        num_heads=integer(sizes, "linear_num_heads", 1, MAX_HEADS),
        head_dim=integer(sizes, "linear_head_dim", 1, MAX_HEAD_DIM),
        kernel=integer(sizes, "linear_conv_kernel_dim", 2, MAX_KERNEL),
        norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
    )
    latent = latent_fields(
        {**config, "rope_parameters": None, "rope_scaling": None}, interleaved=False
    )
    return {
        **v3_experts(config),
        **latent,
        "rope": None,
        "dense_layers": listed_dense(
            config, integer(config, "first_k_dense_replace", 0, MAX_LAYERS)
        ),
        "mixer": mixer,
        "mixer_layers": mixer_layers(config, _kimi_kinds(config, own), "linear_attention"),
    }


def _bailing_hybrid(config: Fields) -> Mapping[str, Any]:
    kinds, count = layer_types(config), num_layers(config)
    if kinds is None:
        size = integer(config, "layer_group_size", 1, MAX_LAYERS)
        kinds = ["linear_attention" if (i + 1) % size else "full_attention" for i in range(count)]
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    original = "original_max_position_embeddings"
    if rope.get("rope_type") in ("longrope", "yarn", "llama3") and rope.get(original) is None:
        # The reference takes the default of `max_position_embeddings`, not the file's.
        raise invalid(original, "a number with this rope_type", None)
    bound = number(config, "kda_lower_bound", above=-1e3, below=0.0)
    dense = integer(config, "first_k_dense_replace", 0, MAX_LAYERS)
    return {
        **v3_experts(config),
        **latent_fields(config, interleaved=True),
        "attention_gate": True,
        "gate_by_head": True,
        "dense_layers": listed_dense(config, dense),
        "mixer": KimiDelta(
            num_heads=optional_integer(config, "linear_num_heads", 1, MAX_HEADS)
            or num_heads(config),
            head_dim=optional_integer(config, "linear_head_dim", 1, MAX_HEAD_DIM)
            or integer(config, "head_dim", 1, MAX_HEAD_DIM),
            kernel=optional_integer(config, "linear_conv_kernel_dim", 2, MAX_KERNEL)
            or integer(config, "short_conv_kernel_size", 2, MAX_KERNEL),
            norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
            is_plain=True,
            bound=bound if flag(config, "kda_safe_gate") else None,
        ),
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
    }


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


_KIMI_MIXER = {
    "mixer_q": "self_attn.q_proj.weight",
    "mixer_k": "self_attn.k_proj.weight",
    "mixer_v": "self_attn.v_proj.weight",
    "mixer_b": "self_attn.b_proj.weight",
    "mixer_step_in": "self_attn.f_a_proj.weight",
    "mixer_gate_in": "self_attn.g_a_proj.weight",
    "mixer_step": "self_attn.f_b_proj.weight",
    "mixer_gate": "self_attn.g_b_proj.weight",
    "mixer_conv_q": "self_attn.q_conv1d.weight",
    "mixer_conv_k": "self_attn.k_conv1d.weight",
    "mixer_conv_v": "self_attn.v_conv1d.weight",
    "mixer_decay": "self_attn.A_log",
    "mixer_step_bias": "self_attn.dt_bias",
    "mixer_norm": "self_attn.o_norm.weight",
    "mixer_out": "self_attn.o_proj.weight",
}
_KIMI_EXPERTS = {
    **MIXTRAL_EXPERTS,
    "router_correction": "block_sparse_moe.gate.e_score_correction_bias",
    "shared_gate": "block_sparse_moe.shared_experts.gate_proj.weight",
    "shared_up": "block_sparse_moe.shared_experts.up_proj.weight",
    "shared_down": "block_sparse_moe.shared_experts.down_proj.weight",
}
_KIMI_KEYS = frozen(
    max_position_embeddings="model_max_length",
    norm_topk_prob="moe_renormalize",
    n_group="num_expert_group",
    num_local_experts="num_experts",
    num_experts_per_tok="num_experts_per_token",
    n_shared_experts="num_shared_experts",
)
_BAILING_LAYER = {
    **EXPERTS,
    **SHARED_EXPERTS,
    **{
        name: rest.replace("self_attn.", "attention.").replace("o_proj", "dense")
        for name, rest in {**LATENT_TENSORS, **_KIMI_MIXER}.items()
    },
    "router_correction": "mlp.gate.expert_bias",
    "mixer_step_in": "attention.f_proj.weight",
    "mixer_gate_in": "attention.g_proj.weight",
    "attn_gate": "attention.g_proj.weight",
    "q": "attention.q_proj.weight",
    "o": "attention.dense.weight",
    "o_bias": "attention.dense.bias",
}
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

DELTA_HYBRIDS: Mapping[str, Architecture] = {
    "KimiLinearForCausalLM": Architecture(
        name="kimi_linear",
        model_type="kimi_linear",
        overrides=_kimi_linear,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=_KIMI_KEYS,
        tensors=llama_tensors({**LATENT_TENSORS, **_KIMI_MIXER, **_KIMI_EXPERTS}),
        defaults=frozen(
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
            max_position_embeddings=1_048_576,
            rms_norm_eps=1e-5,
            intermediate_size=9216,
            moe_intermediate_size=1024,
            first_k_dense_replace=1,
            num_local_experts=256,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.446,
            linear_head_dim=128,
            linear_num_heads=32,
            linear_conv_kernel_dim=4,
            bos_token_id=163_584,
            eos_token_id=163_586,
        ),
    ),
    "BailingHybridForCausalLM": Architecture(
        name="bailing_hybrid",
        model_type="bailing_hybrid",
        overrides=_bailing_hybrid,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=_KIMI_KEYS,
        tensors={**llama_tensors(_BAILING_LAYER), "embed": "model.word_embeddings.weight"},
        defaults=frozen(
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
            rope_theta=6e6,
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            hidden_size=2560,
            intermediate_size=6144,
            num_hidden_layers=42,
            num_attention_heads=32,
            moe_intermediate_size=768,
            first_k_dense_replace=2,
            num_local_experts=512,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_group=8,
            topk_group=4,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            head_dim=128,
            layer_group_size=6,
            short_conv_kernel_size=4,
            kda_safe_gate=True,
            kda_lower_bound=-5.0,
            eos_token_id=156_895,
        ),
    ),
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
}
