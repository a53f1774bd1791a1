"""Moonshot: Kimi Linear."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    MIXTRAL_EXPERTS,
    MOE_KEYS,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
    integer,
    invalid,
    mapping,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    LATENT_KEYS,
    LATENT_TENSORS,
    latent_attention,
    v3_moe,
)
from swiftchat.weights.architectures.parts.layers import mixing, sparse
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import KimiDelta
from swiftchat.weights.architectures.parts.model import ModelConfig


def _kimi_kinds(keys: Keys, listed: Fields) -> list[str]:
    """Return the kinds of the layers; published files count them from 1."""
    kinds, count = keys.layer_types, keys.num_layers
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


def _kimi_linear(keys: Keys) -> ModelConfig:
    own = mapping(keys, "linear_attn_config") or {}
    listed = {
        "linear_head_dim": own.get("head_dim"),
        "linear_num_heads": own.get("num_heads"),
        "linear_conv_kernel_dim": own.get("short_conv_kernel_size"),
    }
    sizes = keys.changed(**{name: value for name, value in listed.items() if value is not None})
    mixer = KimiDelta(
        num_heads=integer(sizes, "linear_num_heads", 1, MAX_HEADS),
        head_dim=integer(sizes, "linear_head_dim", 1, MAX_HEAD_DIM),
        kernel=integer(sizes, "linear_conv_kernel_dim", 2, MAX_KERNEL),
        norm_eps=keys.eps,
    )
    plain = keys.changed(rope_parameters=None, rope_scaling=None)
    attention = replace(latent_attention(plain, interleaved=False), rope=None)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    where = mixer_layers(keys, _kimi_kinds(keys, own), "linear_attention")
    layers = mixing(layers, mixer, where, keys.activation_kind)
    dense = listed_dense(keys, integer(keys, "first_k_dense_replace", 0, MAX_LAYERS))
    return keys.model(sparse(layers, v3_moe(keys), dense))


KIMI_MIXER = {
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

KIMI_KEYS = frozen(
    max_position_embeddings="model_max_length",
    norm_topk_prob="moe_renormalize",
    n_group="num_expert_group",
    num_local_experts="num_experts",
    num_experts_per_tok="num_experts_per_token",
    n_shared_experts="num_shared_experts",
)


ARCHITECTURES: Architectures = {
    "KimiLinearForCausalLM": Architecture(
        model_type="kimi_linear",
        build=_kimi_linear,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=KIMI_KEYS,
        tensors=llama_tensors({**LATENT_TENSORS, **KIMI_MIXER, **_KIMI_EXPERTS}),
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
}
