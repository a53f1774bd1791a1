"""Mixtures of experts with a softmax over the scores: OLMoE, ERNIE 4.5, HunYuan, Phi-3.5-MoE, DBRX.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.llama_like import OUTPUT_NORMS, hunyuan
from swiftchat.weights.architectures.families.moe import (
    MIXTRAL_EXPERTS,
    MOE_KEYS,
    SHARED_EXPERTS,
    SHARED_MLP,
    experts_of_width,
    listed_dense,
    moe_overrides,
)
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    num_layers,
    optional_number,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig, layer_ropes
from swiftchat.weights.architectures.parts.router import RouterConfig


def _olmoe(config: Fields) -> Mapping[str, Any]:
    return {
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
        "router": RouterConfig(normalized=flag(config, "norm_topk_prob")),
        "qk_norm": "width",
    }


def _flex_olmo(config: Fields) -> Mapping[str, Any]:
    return {**_olmoe(config), "norm_order": "output"}


def _ernie_moe(config: Fields) -> Mapping[str, Any]:
    bias, count = flag(config, "use_bias"), num_layers(config)
    if bias:
        raise invalid("use_bias", "false", bias)
    first = integer(config, "moe_layer_start_index", 0, MAX_LAYERS)
    last = integer(config, "moe_layer_end_index", -1, MAX_LAYERS)
    last = count - 1 if last == -1 else last
    step = integer(config, "moe_layer_interval", 1, MAX_LAYERS)
    sparse = {i for i in range(count) if first <= i <= last and (i + 1) % step == 0}
    router = RouterConfig(correction=True, normalized=True)
    return {
        **experts_of_width(config, router, "moe_num_shared_experts"),
        "attention_bias": False,
        "dense_layers": frozenset(range(count)) - sparse,
    }


def _hunyuan_moe(config: Fields) -> Mapping[str, Any]:
    for name in ("moe_topk", "num_experts"):
        if isinstance(config.get(name), list):
            raise invalid(name, "one number for all layers", config[name])
    return {
        **moe_overrides(config),
        **hunyuan(config),
        "attention_bias": flag(config, "attention_bias"),
        "shared_expert_size": integer(config, "intermediate_size", 1, MAX_WIDTH),
    }


def _mellum(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    ropes = config.get("rope_parameters") or _MELLUM_ROPES
    fields = {"max_position_embeddings": config.get("max_position_embeddings")}
    router = RouterConfig(normalized=flag(config, "norm_topk_prob"))
    return {
        **experts_of_width(config, router, None),
        "output_bias": flag(config, "attention_bias"),
        "qk_norm": "head",
        **layer_ropes({**fields, "rope_parameters": ropes}, head_dim, 1e4),
        "layer_types": ["full_attention"] * num_layers(config),
        "dense_layers": listed_dense(config, 0),
    }


def _phimoe(config: Fields) -> Mapping[str, Any]:
    jitter = config.get("router_jitter_noise", 0.01)
    if jitter != 0.01:
        raise invalid("router_jitter_noise", "0.01", jitter)
    bias = flag(config, "attention_bias")
    return {
        **moe_overrides(config),
        "attention_bias": bias,
        "output_bias": bias,
        "norm": "layer",
        "norm_bias": True,
        "lm_head_bias": flag(config, "lm_head_bias"),
        "router": RouterConfig("sparsemixer"),
        "experts_per_token": 2,  # whatever config.json says
    }


_OLMO_DEFAULTS = frozen(max_position_embeddings=4096, norm_topk_prob=False)

_HUNYUAN_NORMS = frozen(
    q_norm="self_attn.query_layernorm.weight", k_norm="self_attn.key_layernorm.weight"
)

_MELLUM_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5), sliding_attention=frozen(rope_theta=1e4)
)


def _dbrx(config: Fields) -> Mapping[str, Any]:
    attention = mapping(config, "attn_config") or {}
    experts = {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}
    experts |= mapping(config, "ffn_config") or {}
    count, width = "moe_num_experts", integer(experts, "ffn_hidden_size", 1, MAX_WIDTH)
    normalized = experts.get("moe_normalize_expert_weights", 1.0)
    if normalized not in (None, 1):
        raise invalid("moe_normalize_expert_weights", "1 or null", normalized)
    kv_heads = integer({"kv_n_heads": 1, **attention}, "kv_n_heads", 1, num_heads(config))
    if num_heads(config) % kv_heads:
        raise invalid("kv_n_heads", f"a divisor of {num_heads(config)} heads", kv_heads)
    activation = mapping(experts, "ffn_act_fn") or {}
    if activation.get("name", "silu") != "silu":
        raise invalid("ffn_act_fn", "silu", activation.get("name"))
    rope = dict(config)
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        rope["rope_theta"] = attention.get("rope_theta", config.get("rope_theta", 10_000.0))
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "norm": "layer",
        "norm_eps": 1e-5,
        "activation": "silu",
        "num_kv_heads": kv_heads,
        "clip_qkv": optional_number(attention, "clip_qkv", above=0.0, below=1e6),
        "rope": RopeConfig.from_hf(rope, hidden_size(config) // num_heads(config)),
        "intermediate_size": width,
        "num_experts": integer(experts, count, 1, MAX_EXPERTS),
        "expert_size": width,
        "experts_per_token": integer(experts, "moe_top_k", 1, integer(experts, count, 1, 2**16)),
        "router": RouterConfig(normalized=normalized is not None),
    }


SOFTMAX_ROUTERS: Mapping[str, Architecture] = {
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
    "Ernie4_5_MoeForCausalLM": Architecture(
        name="ernie4_5_moe",
        model_type="ernie4_5_moe",
        overrides=_ernie_moe,
        row_vectors=frozenset({"router_correction"}),
        interleaved_rope=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="moe_num_experts", num_experts_per_tok="moe_k"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "mlp.moe_statics.e_score_correction_bias",
            }
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=4,
            moe_intermediate_size=1536,
            moe_num_experts=64,
            moe_k=6,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_end_index=-1,
            moe_layer_interval=1,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "HunYuanMoEV1ForCausalLM": Architecture(
        name="hunyuan_v1_moe",
        model_type="hunyuan_v1_moe",
        overrides=_hunyuan_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts", num_experts_per_tok="moe_topk"),
        tensors=llama_tensors(
            {**EXPERTS, **SHARED_MLP, **_HUNYUAN_NORMS, "router": "mlp.gate.wg.weight"}
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_experts=1,
            moe_topk=1,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MellumForCausalLM": Architecture(
        name="mellum",
        model_type="mellum",
        overrides=_mellum,
        windowed=True,
        supported_keys=MOE_KEYS,
        tensors=llama_tensors(EXPERTS),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=1024,
            num_local_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=896,
            norm_topk_prob=True,
        ),
    ),
    "PhimoeForCausalLM": Architecture(
        name="phimoe",
        model_type="phimoe",
        overrides=_phimoe,
        windowed=True,
        same_windows=True,
        supported_keys=MOE_KEYS,
        tensors=llama_tensors(
            {**MIXTRAL_EXPERTS, "lm_head_bias": "lm_head.bias"}, without=("gate", "up", "down")
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=1e6,
            num_local_experts=16,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "DbrxForCausalLM": Architecture(
        name="dbrx",
        model_type="dbrx",
        overrides=_dbrx,
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
