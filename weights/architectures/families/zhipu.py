"""Zhipu (Z.ai): ChatGLM and GLM."""

from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import Attention, HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import (
    CORRECTION,
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    first_dense,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    number,
)
from swiftchat.weights.architectures.parts.gpt_readers import NEOX_LAYER
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    SPARSE_DEFAULTS,
    SPARSE_TENSORS,
    V3_KEYS,
    V3_TENSORS,
    latent_attention,
    sparse_model,
    v3_moe,
)
from swiftchat.weights.architectures.parts.layers import Layers, sparse
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.prefix_lm import PrefixLM
from swiftchat.weights.architectures.parts.rope import RopeConfig


def _glm4_moe_lite(keys: Keys) -> ModelConfig:
    attention = latent_attention(keys, interleaved=flag(keys, "rope_interleave"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    return keys.model(sparse(layers, v3_moe(keys), listed_dense(keys, 1)))


def chatglm_generation(config: Fields) -> str:
    """Return `CHATGLM_6B` or `CHATGLM`: both generations use either class name."""
    return CHATGLM_6B if "position_encoding_2d" in config else CHATGLM


def _glm_layers(keys: Keys, **fields: Any) -> Layers:
    attention = keys.attention(output_bias=False, rope=keys.rope(interleaved=True))
    return keys.layers(attention=attention, mlp=keys.mlp(bias=False), **fields)


def _glm(keys: Keys) -> ModelConfig:
    return keys.model(_glm_layers(keys))


def _glm4(keys: Keys) -> ModelConfig:
    return keys.model(_glm_layers(keys, norm_order="sandwich"))


def _chatglm(keys: Keys) -> ModelConfig:
    for name, only in (("rmsnorm", True), ("post_layer_norm", True), ("add_bias_linear", False)):
        if keys.get(name, only) is not only:
            raise invalid(name, str(only).lower(), keys[name])
    heads, grouped = keys.num_heads, flag(keys, "multi_query_attention")
    ratio = number(keys, "rope_ratio", above=0.0, below=1e6, default=1.0)
    rope = {"rope_theta": 10_000.0 * ratio, "partial_rotary_factor": 0.5}
    attention = keys.attention(
        num_kv_heads=integer(keys, "multi_query_group_num", 1, heads) if grouped else heads,
        bias=flag(keys, "add_qkv_bias"),
        output_bias=False,
        rope=RopeConfig.from_hf(rope, keys.head_dim, interleaved=True),
    )
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _chatglm_6b(keys: Keys) -> ModelConfig:
    for name, only in (
        ("position_encoding_2d", True),
        ("quantization_bit", 0),
        ("pre_seq_len", None),
    ):
        if keys.get(name, only) != only:
            raise invalid(name, repr(only), keys[name])
    heads, hidden = keys.num_heads, integer(keys, "hidden_size", 4, MAX_WIDTH)
    if hidden % (4 * heads):
        raise invalid("hidden_size", f"a multiple of 4 · {heads} heads", hidden)
    last_id = keys.vocab_size - 1
    start, *masks = (
        integer(keys, f"{name}_token_id", 0, last_id) for name in ("bos", "gmask", "mask")
    )
    rope = RopeConfig(rotary_dim=hidden // heads // 2, two_dimensional=True)
    layers = keys.layers(
        attention=keys.attention(num_kv_heads=heads, bias=True, rope=rope),
        mlp=keys.mlp(activation=keys.activation("gelu_tanh", gated=False), bias=True),
        norm_order="stream",
        stream_scales=((2 * keys.num_layers) ** 0.5,) * 2,
    )
    return keys.model(
        layers,
        norm=keys.norm("layer", has_bias=True),
        prefix_lm=PrefixLM(start, tuple(masks)),
    )


def glm4_head_norms(keys: Keys) -> HeadNorms | None:
    return HeadNorms("head") if flag(keys, "use_qk_norm") else None


def glm4_moe_layers(keys: Keys, attention: Attention) -> Layers:
    """Return layers with the MLPs and experts of GLM-4.5 and Ling 2.0."""
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    moe = keys.moe(sigmoid_router(keys), shared="n_shared_experts")
    return sparse(layers, moe, first_dense(keys, "first_k_dense_replace"))


def glm4_moe(keys: Keys) -> ModelConfig:
    """Return GLM-4.5."""
    attention = keys.attention(output_bias=False, head_norms=glm4_head_norms(keys))
    return keys.model(glm4_moe_layers(keys, attention))


def _glm_moe_dsa(keys: Keys) -> ModelConfig:
    kinds, frequency = keys.get("indexer_types"), keys.get("index_topk_freq", 1)
    if frequency != 1 or keys.get("index_topk_pattern") is not None:
        raise invalid("index_topk_freq", "1: each layer has its own index", frequency)
    if kinds is not None and (not isinstance(kinds, list) or {*kinds} - {"full"}):
        raise invalid("indexer_types", "full in every layer", str(kinds))
    return sparse_model(keys, interleaved=True)


CHATGLM, CHATGLM_6B = "ChatGLMModel", "ChatGLMForConditionalGeneration"

_GLM_DEFAULTS = frozen(
    max_position_embeddings=131_072,
    rms_norm_eps=1.5625e-7,
    num_key_value_heads=2,
    head_dim=128,
    attention_bias=True,
    partial_rotary_factor=0.5,
    eos_token_id=[151_329, 151_336, 151_338],
)

GLM_TENSORS = llama_tensors({**EXPERTS, **SHARED_EXPERTS, **CORRECTION})

GLM_DEFAULTS = frozen(
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    num_key_value_heads=8,
    moe_intermediate_size=1408,
    num_local_experts=128,
    num_experts_per_tok=8,
    n_shared_experts=1,
    norm_topk_prob=True,
)


ARCHITECTURES: Architectures = {
    "Glm4MoeLiteForCausalLM": Architecture(
        model_type="glm4_moe_lite",
        build=_glm4_moe_lite,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=V3_TENSORS,
        defaults=frozen(
            kv_lora_rank=512,
            q_lora_rank=768,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            max_position_embeddings=202_752,
            rms_norm_eps=1e-5,
            intermediate_size=10_240,
            moe_intermediate_size=1536,
            n_routed_experts=64,
            n_shared_experts=1,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.8,
            rope_interleave=True,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
    "GlmForCausalLM": Architecture(
        model_type="glm",
        build=_glm,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors({"gate_up": "mlp.gate_up_proj.weight"}, without=SEPARATE_GATE_UP),
        defaults=_GLM_DEFAULTS,
    ),
    "Glm4ForCausalLM": Architecture(
        model_type="glm4",
        build=_glm4,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors(
            {
                "gate_up": "mlp.gate_up_proj.weight",
                "attn_out_norm": "post_self_attn_layernorm.weight",
                "mlp_out_norm": "post_mlp_layernorm.weight",
            },
            without=SEPARATE_GATE_UP,
        ),
        defaults=_GLM_DEFAULTS,
    ),
    CHATGLM: Architecture(
        generation=chatglm_generation,
        model_type="chatglm",
        build=_chatglm,
        prefix="transformer.",
        renamed=frozen(
            vocab_size="padded_vocab_size",
            num_hidden_layers="num_layers",
            intermediate_size="ffn_hidden_size",
            head_dim="kv_channels",
            max_position_embeddings="seq_length",
            rms_norm_eps="layernorm_epsilon",
        ),
        tensors=tensor_names(
            {
                "qkv": "self_attention.query_key_value.weight",
                "qkv_bias": "self_attention.query_key_value.bias",
                "o": "self_attention.dense.weight",
                "gate_up": "mlp.dense_h_to_4h.weight",
                "down": "mlp.dense_4h_to_h.weight",
                "attn_norm": "input_layernorm.weight",
                "mlp_norm": "post_attention_layernorm.weight",
            },
            embed="transformer.embedding.word_embeddings.weight",
            final_norm="transformer.encoder.final_layernorm.weight",
            lm_head="transformer.output_layer.weight",
            layer="transformer.encoder.layers.{i}.",
        ),
        defaults=frozen(layernorm_epsilon=1e-5, seq_length=2048, kv_channels=128),
    ),
    CHATGLM_6B: Architecture(
        generation=chatglm_generation,
        model_type="chatglm",
        short_name="chatglm-6b",
        build=_chatglm_6b,
        prefix="transformer.",
        qkv_in_groups=True,
        renamed=frozen(
            num_hidden_layers="num_layers",
            intermediate_size="inner_hidden_size",
            max_position_embeddings="max_sequence_length",
            rms_norm_eps="layernorm_epsilon",
        ),
        tensors=tensor_names(
            NEOX_LAYER,
            embed="transformer.word_embeddings.weight",
            final_norm="transformer.final_layernorm.weight",
            final_norm_bias="transformer.final_layernorm.bias",
            lm_head="lm_head.weight",
            layer="transformer.layers.{i}.",
        ),
        defaults=frozen(
            position_encoding_2d=True, max_sequence_length=2048, layernorm_epsilon=1e-5
        ),
    ),
    "Glm4MoeForCausalLM": Architecture(
        model_type="glm4_moe",
        build=glm4_moe,
        supported_keys=MOE_KEYS | {"partial_rotary_factor", "use_qk_norm"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=GLM_TENSORS,
        defaults=frozen(
            **GLM_DEFAULTS,
            intermediate_size=10_944,
            first_k_dense_replace=1,
            partial_rotary_factor=0.5,
        ),
    ),
    "GlmMoeDsaForCausalLM": Architecture(
        model_type="glm_moe_dsa",
        build=_glm_moe_dsa,
        supported_keys=V3_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=SPARSE_TENSORS,
        defaults=frozen(
            **SPARSE_DEFAULTS,
            kv_lora_rank=512,
            q_lora_rank=2048,
            qk_rope_head_dim=64,
            qk_nope_head_dim=192,
            v_head_dim=256,
            max_position_embeddings=202_752,
            rms_norm_eps=1e-5,
            index_n_heads=32,
            n_group=1,
            topk_group=1,
        ),
    ),
}
