"""Mistral, Mixtral and Ministral."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    MIXTRAL_EXPERTS,
    SHARED_EXPERTS,
    first_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    flag,
    invalid,
    mapping,
    number,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.latent_readers import (
    LATENT_TENSORS,
    V3_KEYS,
    latent_attention,
)
from swiftchat.weights.architectures.parts.layers import sparse, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import QueryGrowth
from swiftchat.weights.architectures.parts.router import RouterConfig


def _mistral(keys: Keys) -> ModelConfig:
    attention = keys.attention(scores=keys.scores(window=keys.window()))
    return keys.model(keys.layers(attention=attention))


def _ministral(keys: Keys) -> ModelConfig:
    return keys.model(windowed(keys.layers(), keys.windows(None)))


def _mixtral(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=False, scores=keys.scores(window=keys.window()))
    moe = keys.moe(RouterConfig(normalized=True), expert_size=keys.intermediate_size)
    return keys.model(keys.layers(attention=attention, mlp=None, moe=moe))


def _mistral4(keys: Keys) -> ModelConfig:
    if keys.get("rope_parameters") is None and keys.get("rope_scaling") is None:
        keys = keys.changed(rope_parameters=_MISTRAL4_ROPE)
    # The rotated fraction of a head is that of its sizes.
    keys = keys.without("partial_rotary_factor")
    rope = mapping(keys, "rope_scaling") or mapping(keys, "rope_parameters") or {}
    beta = number(rope, "llama_4_scaling_beta", above=0.0, below=1e6)
    name = "original_max_position_embeddings"
    tokens = number(keys if keys.get(name) is not None else rope, name, above=0.0, below=1e9)
    attention = latent_attention(keys, interleaved=flag(keys, "rope_interleave"))
    attention = attention.with_scores(growth=QueryGrowth(beta, tokens))
    router = replace(sigmoid_router(keys), scores="softmax", correction=False)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    moe = keys.moe(router, shared="n_shared_experts")
    return keys.model(sparse(layers, moe, first_dense(keys, "first_k_dense_replace")))


def _ministral3(keys: Keys) -> ModelConfig:
    if keys.get("rope_parameters") is None:
        keys = keys.changed(rope_parameters=_MINISTRAL3_ROPE)
    rope = mapping(keys, "rope_scaling") or mapping(keys, "rope_parameters") or {}
    beta = optional_number(rope, "llama_4_scaling_beta", above=-1e-9, below=1e3)
    name = "original_max_position_embeddings"
    fields = keys if keys.get(name) is not None else rope
    tokens = optional_integer(fields, name, 1, MAX_CONTEXT)
    if beta is None or tokens is None:
        raise invalid(f"llama_4_scaling_beta and {name}", "in rope_parameters", None)
    scores = keys.scores(window=keys.window(), growth=QueryGrowth(beta, float(tokens)))
    attention = keys.attention(bias=False, scores=scores)
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


_MISTRAL4_ROPE = frozen(
    rope_type="yarn",
    rope_theta=10_000.0,
    factor=128.0,
    original_max_position_embeddings=8192,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale_all_dim=1.0,
    mscale=1.0,
    llama_4_scaling_beta=0.1,
)

_MISTRAL4_TENSORS = llama_tensors(
    {
        **LATENT_TENSORS,
        **SHARED_EXPERTS,
        "router": "mlp.gate.weight",
        "experts_gate_up": "mlp.experts.gate_up_proj",
        "experts_down": "mlp.experts.down_proj",
    }
)

_MINISTRAL3_ROPE = frozen(
    rope_type="yarn",
    rope_theta=1e6,
    factor=16.0,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    original_max_position_embeddings=16_384,
    llama_4_scaling_beta=0.1,
)


ARCHITECTURES: Architectures = {
    "Mistral4ForCausalLM": Architecture(
        model_type="mistral4",
        build=_mistral4,
        supported_keys=V3_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=_MISTRAL4_TENSORS,
        defaults=frozen(
            kv_lora_rank=256,
            q_lora_rank=1024,
            qk_rope_head_dim=64,
            qk_nope_head_dim=64,
            v_head_dim=128,
            max_position_embeddings=1_048_576,
            rms_norm_eps=1e-6,
            intermediate_size=12_288,
            moe_intermediate_size=2048,
            first_k_dense_replace=0,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
            rope_interleave=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MistralForCausalLM": Architecture(
        model_type="mistral",
        build=_mistral,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=4096 * 32,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            sliding_window=4096,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MinistralForCausalLM": Architecture(
        model_type="ministral",
        build=_ministral,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            sliding_window=4096,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Ministral3ForCausalLM": Architecture(
        model_type="ministral3",
        build=_ministral3,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=1e6,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MixtralForCausalLM": Architecture(
        model_type="mixtral",
        build=_mixtral,
        supported_keys=frozenset({"num_local_experts"}) | WINDOW_KEYS,
        tensors=llama_tensors(
            MIXTRAL_EXPERTS,
            without=("gate", "up", "down"),
        ),
        defaults=frozen(
            max_position_embeddings=4096 * 32,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=1e6,
            num_local_experts=8,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
