"""MosaicML and Databricks: MPT and DBRX."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.expert_readers import MOE_KEYS
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_WIDTH,
    integer,
    invalid,
    mapping,
    optional_number,
)
from swiftchat.weights.architectures.parts.gpt_readers import mlp_width
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _mpt(keys: Keys) -> ModelConfig:
    own = mapping(keys, "attn_config") or {}
    scale = optional_number(own, "softmax_scale", above=0.0, below=1e6)
    attention = keys.attention(
        num_kv_heads=keys.num_heads,
        bias=False,
        rope=None,
        scores=keys.scores(scale=scale, alibi_scale=1.0),
        clip=optional_number(own, "clip_qkv", above=0.0, below=1e6),
    )
    mlp = keys.mlp(
        intermediate_size=mlp_width(keys, None),
        activation=keys.activation("gelu", gated=False),
        bias=False,
    )
    return keys.model(keys.layers(attention=attention, mlp=mlp), norm=keys.norm("layer"))


def _dbrx_attention(keys: Keys) -> Attention:
    own, heads = mapping(keys, "attn_config") or {}, keys.num_heads
    kv_heads = integer({"kv_n_heads": 1, **own}, "kv_n_heads", 1, heads)
    if heads % kv_heads:
        raise invalid("kv_n_heads", f"a divisor of {heads} heads", kv_heads)
    rope_keys = keys
    if not (keys.get("rope_parameters") or keys.get("rope_scaling")):
        theta = own.get("rope_theta", keys.get("rope_theta", 10_000.0))
        rope_keys = keys.changed(rope_theta=theta)
    return keys.attention(
        num_kv_heads=kv_heads,
        bias=False,
        rope=rope_keys.rope(keys.hidden_size // heads),
        clip=optional_number(own, "clip_qkv", above=0.0, below=1e6),
    )


def _dbrx(keys: Keys) -> ModelConfig:
    own = {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}
    own |= mapping(keys, "ffn_config") or {}
    normalized = own.get("moe_normalize_expert_weights", 1.0)
    if normalized not in (None, 1):
        raise invalid("moe_normalize_expert_weights", "1 or null", normalized)
    activation = mapping(own, "ffn_act_fn") or {}
    if activation.get("name", "silu") != "silu":
        raise invalid("ffn_act_fn", "silu", activation.get("name"))
    num_experts = integer(own, "moe_num_experts", 1, MAX_EXPERTS)
    moe = keys.moe(
        RouterConfig(normalized=normalized is not None),
        num_experts=num_experts,
        experts_per_token=integer(own, "moe_top_k", 1, num_experts),
        expert_size=integer(own, "ffn_hidden_size", 1, MAX_WIDTH),
        activation=keys.activation("silu"),
    )
    layers = keys.layers(attention=_dbrx_attention(keys), mlp=None, moe=moe)
    return keys.model(layers, norm=keys.norm("layer", eps=1e-5))


ARCHITECTURES: Architectures = {
    "MptForCausalLM": Architecture(
        model_type="mpt",
        build=_mpt,
        renamed=frozen(
            hidden_size="d_model",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            max_position_embeddings="max_seq_len",
            rms_norm_eps="layer_norm_epsilon",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "attn.Wqkv.weight",
                "o": "attn.out_proj.weight",
                "up": "ffn.up_proj.weight",
                "down": "ffn.down_proj.weight",
                "attn_norm": "norm_1.weight",
                "mlp_norm": "norm_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048, layer_norm_epsilon=1e-5, tie_word_embeddings=True),
    ),
    "DbrxForCausalLM": Architecture(
        model_type="dbrx",
        build=_dbrx,
        renamed=frozen(
            hidden_size="d_model",
            num_attention_heads="n_heads",
            num_hidden_layers="n_layers",
            max_position_embeddings="max_seq_len",
        ),
        supported_keys=MOE_KEYS,
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "norm_attn_norm.attn.Wqkv.weight",
                "o": "norm_attn_norm.attn.out_proj.weight",
                "attn_norm": "norm_attn_norm.norm_1.weight",
                "mlp_norm": "norm_attn_norm.norm_2.weight",
                "router": "ffn.router.layer.weight",
                "experts_gate": "ffn.experts.mlp.w1",
                "experts_up": "ffn.experts.mlp.v1",
                "experts_down": "ffn.experts.mlp.w2",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048),
    ),
}
