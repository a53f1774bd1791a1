"""Meituan: LongCat."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.expert_readers import MOE_KEYS
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    integer,
    invalid,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    LATENT_KEYS,
    LATENT_TENSORS,
    V3_SIZES,
    latent_attention,
)
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _check(keys: Keys, name: str, *expected: object) -> None:
    if keys.get(name) not in (None, *expected):
        raise invalid(name, " or ".join(map(str, expected)), keys.get(name))


def _longcat_attention(keys: Keys) -> Attention:
    attention = latent_attention(keys, interleaved=True)
    assert attention.latent is not None
    latent, hidden = attention.latent, keys.hidden_size
    _check(keys, "head_dim", latent.rope_dim)
    _check(keys, "qk_head_dim", latent.head_dim)
    q_rank = integer(keys, "q_lora_rank", 1, MAX_WIDTH)  # not optional
    scales = {"q_scale": (hidden / q_rank) ** 0.5, "kv_scale": (hidden / latent.kv_rank) ** 0.5}
    return replace(attention, latent=replace(latent, **scales))


def _longcat_flash(keys: Keys) -> ModelConfig:
    count = integer(keys, "num_layers", 1, MAX_LAYERS // 2)
    _check(keys, "num_hidden_layers", 2 * count)
    # Of the published files; the reference computes as with these values.
    _check(keys, "zero_expert_type", "identity")
    _check(keys, "mla_scale_q_lora", True)
    _check(keys, "mla_scale_kv_lora", True)
    router = RouterConfig(
        correction=True,
        scale=number(keys, "routed_scaling_factor", above=0.0, below=1e6),
    )
    identity = optional_integer(keys, "zero_expert_num", 0, MAX_EXPERTS) or 0
    moe = keys.moe(router, identity_experts=identity)
    layer = LayerConfig(_longcat_attention(keys), mlp=keys.mlp(bias=False))
    return keys.model((replace(layer, moe=moe, is_shortcut=True), layer) * count)


_PARTS = ("gate", "up", "down")

_LAYER = {
    **{name: rest.replace("self_attn.", "self_attn.{j}.") for name, rest in LATENT_TENSORS.items()},
    **{name: f"mlps.{{j}}.{name}_proj.weight" for name in _PARTS},
    **{f"expert_{name}": f"mlp.experts.{{e}}.{name}_proj.weight" for name in _PARTS},
    "o": "self_attn.{j}.o_proj.weight",
    "o_bias": "self_attn.{j}.o_proj.bias",
    "attn_norm": "input_layernorm.{j}.weight",
    "mlp_norm": "post_attention_layernorm.{j}.weight",
    "router": "mlp.router.classifier.weight",
    "router_correction": "mlp.router.e_score_correction_bias",
}


ARCHITECTURES: Architectures = {
    "LongcatFlashForCausalLM": Architecture(
        model_type="longcat_flash",
        build=_longcat_flash,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=frozen(
            intermediate_size="ffn_hidden_size",
            moe_intermediate_size="expert_ffn_hidden_size",
            num_local_experts="n_routed_experts",
            num_experts_per_tok="moe_topk",
        ),
        sublayers=2,
        tensors=llama_tensors(_LAYER),
        defaults=frozen(
            **V3_SIZES,
            vocab_size=131_072,
            hidden_size=6144,
            num_layers=28,
            num_attention_heads=64,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=1e7,
            ffn_hidden_size=12_288,
            expert_ffn_hidden_size=2048,
            n_routed_experts=512,
            zero_expert_num=256,
            moe_topk=12,
            routed_scaling_factor=6.0,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
