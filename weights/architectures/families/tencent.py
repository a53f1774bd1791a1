"""Tencent: HunYuan, Hy3 and Youtu."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import flag, invalid
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    DENSE_TENSORS,
    LATENT_KEYS,
    V3_SIZES,
    latent_attention,
)
from swiftchat.weights.architectures.parts.layers import sparse
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _youtu(keys: Keys) -> ModelConfig:
    attention = latent_attention(keys, interleaved=flag(keys, "rope_interleave"))
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _hunyuan(keys: Keys) -> ModelConfig:
    attention = keys.attention(head_norms=HeadNorms("head", after_rope=True))
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _hy_v3(keys: Keys) -> ModelConfig:
    attention = keys.attention(head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    router = sigmoid_router(keys, normalized=True, scale="router_scaling_factor")
    moe = keys.moe(router, shared="num_shared_experts")
    return keys.model(sparse(layers, moe, listed_dense(keys, 1)))


def _hunyuan_moe(keys: Keys) -> ModelConfig:
    for name in ("moe_topk", "num_experts"):
        if isinstance(keys.get(name), list):
            raise invalid(name, "one number for all layers", keys[name])
    size = keys.intermediate_size
    moe = keys.moe(RouterConfig(normalized=True), expert_size=size, shared_size=size)
    attention = keys.attention(head_norms=HeadNorms("head", after_rope=True))
    return keys.model(keys.layers(attention=attention, mlp=None, moe=moe))


_NORMS = frozen(q_norm="self_attn.query_layernorm.weight", k_norm="self_attn.key_layernorm.weight")

SHARED_MLP = frozen(
    shared_gate="mlp.shared_mlp.gate_proj.weight",
    shared_up="mlp.shared_mlp.up_proj.weight",
    shared_down="mlp.shared_mlp.down_proj.weight",
)


ARCHITECTURES: Architectures = {
    "YoutuForCausalLM": Architecture(
        model_type="youtu",
        build=_youtu,
        supported_keys=LATENT_KEYS | {"rope_interleave"},
        tensors=DENSE_TENSORS,
        defaults=frozen(
            **V3_SIZES,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_interleave=True,
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "HunYuanDenseV1ForCausalLM": Architecture(
        model_type="hunyuan_v1_dense",
        build=_hunyuan,
        tensors=llama_tensors(_NORMS),
        defaults=frozen(
            max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2
        ),
    ),
    "HYV3ForCausalLM": Architecture(
        model_type="hy_v3",
        build=_hy_v3,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_MLP,
                "router": "mlp.router.gate.weight",
                "router_correction": "mlp.expert_bias",
            }
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            num_shared_experts=1,
            num_local_experts=192,
            num_experts_per_tok=8,
            moe_intermediate_size=1536,
            router_scaling_factor=2.826,
            rope_theta=11_158_840.0,
        ),
    ),
    "HunYuanMoEV1ForCausalLM": Architecture(
        model_type="hunyuan_v1_moe",
        build=_hunyuan_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts", num_experts_per_tok="moe_topk"),
        tensors=llama_tensors({**EXPERTS, **SHARED_MLP, **_NORMS, "router": "mlp.gate.wg.weight"}),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_experts=1,
            moe_topk=1,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
