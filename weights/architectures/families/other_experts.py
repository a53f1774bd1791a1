"""Vendors with one mixture of experts."""

from swiftchat.weights.architectures.families.lg import exaone4_layers
from swiftchat.weights.architectures.families.zhipu import (
    GLM_DEFAULTS,
    GLM_TENSORS,
    glm4_moe,
    glm4_moe_layers,
)
from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    listed_dense,
    sparse_dense_layers,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full, full_layers
from swiftchat.weights.architectures.parts.layers import sparse, unrotated, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import layer_ropes
from swiftchat.weights.architectures.parts.router import RouterConfig
from swiftchat.weights.architectures.parts.variants import TypeVariant


def _aria(keys: Keys) -> ModelConfig:
    if keys.get("hidden_act", "silu") != "silu":  # the routed experts have it in any case
        raise invalid("hidden_act", "silu", keys.get("hidden_act"))
    if flag(keys, "mlp_bias"):
        raise invalid("mlp_bias", "false", True)
    moe = keys.moe(
        RouterConfig(normalized=True),
        expert_size=keys.intermediate_size,
        shared="moe_num_shared_experts",
    )
    return keys.model(keys.layers(mlp=None, moe=moe))


def _dots1(keys: Keys) -> ModelConfig:
    kinds = None
    if keys.get("sliding_window") is not None:
        late = integer(keys, "max_window_layers", 0, MAX_LAYERS)
        count = keys.num_layers
        kinds = ["sliding_attention" if i >= late else "full_attention" for i in range(count)]
    layers = glm4_moe_layers(keys, keys.attention(head_norms=HeadNorms("head")))
    return keys.model(windowed(layers, keys.windows(kinds)))


def _mellum(keys: Keys) -> ModelConfig:
    named = keys.get("rope_parameters") or _MELLUM_ROPES
    context = {"max_position_embeddings": keys.get("max_position_embeddings")}
    rope, local_rope = layer_ropes({**context, "rope_parameters": named}, keys.head_dim, 1e4)
    attention = keys.attention(head_norms=HeadNorms("head"), rope=rope)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    windows = keys.windows(["full_attention"] * keys.num_layers)
    moe = keys.moe(RouterConfig(normalized=flag(keys, "norm_topk_prob")))
    return keys.model(sparse(windowed(layers, windows, local_rope), moe, listed_dense(keys, 0)))


def _shared_size(keys: Keys) -> int:
    return integer(keys, "shared_expert_intermediate_size", 0, MAX_WIDTH)


def _kolibri(keys: Keys) -> ModelConfig:
    if keys.layer_types is None:
        keys = keys.changed(layer_types=every_nth_full(keys, 5))
    normalized = flag(keys, "norm_topk_prob")
    router = RouterConfig("sigmoid", correction=True, by_logits=True, normalized=normalized)
    moe = keys.moe(router, shared_size=_shared_size(keys))
    return keys.model(exaone4_layers(keys, None, moe=moe, norm_order="sandwich"))


def _flint(keys: Keys) -> ModelConfig:
    count, kinds = keys.num_layers, keys.layer_types
    if kinds is None:
        full = {i for i in range(count) if i < 2 or i % 4 == 1} | {count - 1}
        kinds = ["full_attention" if i in full else "sliding_attention" for i in range(count)]
    if keys.get("mlp_only_layers") is None:
        keys = keys.changed(mlp_only_layers=[i for i in (0, 1) if i < count])
    attention = keys.attention(scores=keys.scores(sinks=True), head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    layers = unrotated(windowed(layers, keys.windows(kinds)), full_layers(kinds))
    router = RouterConfig("sigmoid", normalized=flag(keys, "norm_topk_prob"))
    moe = keys.moe(router, shared_size=_shared_size(keys))
    return keys.model(sparse(layers, moe, sparse_dense_layers(keys)))


_MELLUM_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5), sliding_attention=frozen(rope_theta=1e4)
)


ARCHITECTURES: Architectures = {
    "AriaTextForCausalLM": Architecture(
        model_type="aria_text",
        short_name="aria",
        build=_aria,
        supported_keys=frozenset({"num_local_experts"}),
        renamed=frozen(num_local_experts="moe_num_experts", num_experts_per_tok="moe_topk"),
        tensors=llama_tensors(
            {
                **SHARED_EXPERTS,
                "router": "mlp.router.weight",
                "experts_gate_up": "mlp.experts.fc1.weight",
                "experts_down": "mlp.experts.fc2.weight",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            intermediate_size=4096,
            moe_num_experts=8,
            moe_topk=2,
            moe_num_shared_experts=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "SolarOpenForCausalLM": Architecture(
        model_type="solar_open",
        build=glm4_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=GLM_TENSORS,
        defaults=frozen(
            **{**GLM_DEFAULTS, "moe_intermediate_size": 1280},
            intermediate_size=1280,
            head_dim=128,
            rope_theta=1e6,
            first_k_dense_replace=0,
        ),
    ),
    "Dots1ForCausalLM": Architecture(
        model_type="dots1",
        build=_dots1,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=GLM_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            num_key_value_heads=32,
            intermediate_size=10_944,
            moe_intermediate_size=1408,
            sliding_window=4096,
            max_window_layers=62,
            first_k_dense_replace=0,
            norm_topk_prob=False,
        ),
    ),
    "MellumForCausalLM": Architecture(
        model_type="mellum",
        build=_mellum,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
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
    "Kolibri1ForCausalLM": Architecture(
        model_type="kolibri1",
        build=_kolibri,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **SHARED_EXPERTS,
                "router_correction": "moe.router.expert_bias",
                "attn_out_norm": "post_attn_norm.weight",
                "mlp_out_norm": "post_ffn_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            num_local_experts=384,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            norm_topk_prob=False,
        ),
    ),
    "FlintForCausalLM": Architecture(
        model_type="flint",
        build=_flint,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, "sinks": "self_attn.softmax_offset"}),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=513,
            decoder_sparse_step=1,
            num_local_experts=256,
            num_experts_per_tok=6,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=1024,
            norm_topk_prob=True,
        ),
    ),
}

VARIANTS = (
    TypeVariant(
        "Glm4MoeForCausalLM",
        "sarvam_moe",
        renamed=frozen(
            num_local_experts="n_routed_experts",
            n_routed_experts="num_experts",
            n_shared_experts="num_shared_experts",
            attention_bias="use_qkv_bias",
        ),
        defaults=frozen(
            intermediate_size=8192,
            moe_intermediate_size=1024,
            num_key_value_heads=4,
            head_dim=64,
            num_experts_per_tok=6,
            routed_scaling_factor=2.5,
            rms_norm_eps=1e-6,
            rope_theta=8_000_000.0,
            partial_rotary_factor=1.0,
            use_qk_norm=True,
            eos_token_id=1,
        ),
    ),
    TypeVariant(
        "DeepseekV3ForCausalLM",
        "sarvam_mla",
        defaults=frozen(
            num_key_value_heads=64,
            n_routed_experts=128,
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
        ),
    ),
)
