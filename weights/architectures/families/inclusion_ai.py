"""inclusionAI: Ling."""

from swiftchat.weights.architectures.families.moonshot import KIMI_KEYS, KIMI_MIXER
from swiftchat.weights.architectures.families.zhipu import glm4_head_norms, glm4_moe_layers
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import OutputGate
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    flag,
    integer,
    invalid,
    mapping,
    number,
    optional_integer,
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


def _bailing_mixer(keys: Keys) -> KimiDelta:
    bound = number(keys, "kda_lower_bound", above=-1e3, below=0.0)
    return KimiDelta(
        num_heads=optional_integer(keys, "linear_num_heads", 1, MAX_HEADS) or keys.num_heads,
        head_dim=optional_integer(keys, "linear_head_dim", 1, MAX_HEAD_DIM)
        or integer(keys, "head_dim", 1, MAX_HEAD_DIM),
        kernel=optional_integer(keys, "linear_conv_kernel_dim", 2, MAX_KERNEL)
        or integer(keys, "short_conv_kernel_size", 2, MAX_KERNEL),
        norm_eps=keys.eps,
        is_plain=True,
        bound=bound if flag(keys, "kda_safe_gate") else None,
    )


def _bailing_hybrid(keys: Keys) -> ModelConfig:
    kinds, count = keys.layer_types, keys.num_layers
    if kinds is None:
        size = integer(keys, "layer_group_size", 1, MAX_LAYERS)
        kinds = ["linear_attention" if (i + 1) % size else "full_attention" for i in range(count)]
    rope = mapping(keys, "rope_scaling") or mapping(keys, "rope_parameters") or {}
    original = "original_max_position_embeddings"
    if rope.get("rope_type") in ("longrope", "yarn", "llama3") and rope.get(original) is None:
        # The reference takes the default of `max_position_embeddings`, not the file's.
        raise invalid(original, "a number with this rope_type", None)
    attention = latent_attention(keys, interleaved=True, gate=OutputGate(by_head=True))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    where = mixer_layers(keys, kinds, "linear_attention")
    layers = mixing(layers, _bailing_mixer(keys), where, keys.activation_kind)
    dense = listed_dense(keys, integer(keys, "first_k_dense_replace", 0, MAX_LAYERS))
    return keys.model(sparse(layers, v3_moe(keys), dense))


def _bailing_moe_v2(keys: Keys) -> ModelConfig:
    for name in ("use_bias", "use_qkv_bias", "norm_head"):
        if flag(keys, name):
            raise invalid(name, "false", True)
    if keys.get("score_function", "sigmoid") != "sigmoid":
        raise invalid("score_function", "sigmoid", keys["score_function"])
    attention = keys.attention(bias=False, head_norms=glm4_head_norms(keys))
    return keys.model(glm4_moe_layers(keys, attention))


_BAILING_LAYER = {
    **EXPERTS,
    **SHARED_EXPERTS,
    **{
        name: rest.replace("self_attn.", "attention.").replace("o_proj", "dense")
        for name, rest in {**LATENT_TENSORS, **KIMI_MIXER}.items()
    },
    "router_correction": "mlp.gate.expert_bias",
    "mixer_step_in": "attention.f_proj.weight",
    "mixer_gate_in": "attention.g_proj.weight",
    "attn_gate": "attention.g_proj.weight",
    "q": "attention.q_proj.weight",
    "o": "attention.dense.weight",
    "o_bias": "attention.dense.bias",
}


ARCHITECTURES: Architectures = {
    "BailingHybridForCausalLM": Architecture(
        model_type="bailing_hybrid",
        build=_bailing_hybrid,
        supported_keys=MOE_KEYS | LATENT_KEYS,
        renamed=KIMI_KEYS,
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
    "BailingMoeV2ForCausalLM": Architecture(
        model_type="bailing_moe",
        short_name="bailing_moe_v2",
        build=_bailing_moe_v2,
        supported_keys=MOE_KEYS | {"partial_rotary_factor", "use_qk_norm"},
        renamed=frozen(num_local_experts="num_experts", n_shared_experts="num_shared_experts"),
        tensors=tensor_names(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "mlp.gate.expert_bias",
                "qkv": "attention.query_key_value.weight",
                "q_norm": "attention.query_layernorm.weight",
                "k_norm": "attention.key_layernorm.weight",
                "o": "attention.dense.weight",
                "gate": "mlp.gate_proj.weight",
                "up": "mlp.up_proj.weight",
                "down": "mlp.down_proj.weight",
                "attn_norm": "input_layernorm.weight",
                "mlp_norm": "post_attention_layernorm.weight",
            },
            embed="model.word_embeddings.weight",
            final_norm="model.norm.weight",
            lm_head="lm_head.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            head_dim=128,
            rope_theta=6e5,
            partial_rotary_factor=0.5,
            use_qk_norm=True,
            moe_intermediate_size=512,
            num_local_experts=256,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_group=8,
            topk_group=4,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        ),
    ),
}
