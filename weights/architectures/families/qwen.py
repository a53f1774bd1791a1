"""Alibaba: Qwen."""

from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms, OutputGate
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    SHARED_EXPERT,
    sparse_dense_layers,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import KINDS
from swiftchat.weights.architectures.parts.layers import Layers, mixing, sparse, windowed
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _uses_window(keys: Keys) -> bool:
    return flag(keys, "use_sliding_window") and keys.get("sliding_window") is not None


def _late_windows(keys: Keys) -> list[int | None]:
    """Return the windows of all layers, by default one from layer `max_window_layers` on."""
    kinds = None
    if _uses_window(keys):
        late, count = integer(keys, "max_window_layers", 0, 2**30), keys.num_layers
        kinds = ["full_attention" if i < late else "sliding_attention" for i in range(count)]
    return keys.windows(kinds, switched=True)


def _qwen2(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=True, output_bias=False)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    return keys.model(windowed(layers, _late_windows(keys)))


def _qwen3(keys: Keys) -> ModelConfig:
    attention = keys.attention(head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    return keys.model(windowed(layers, _late_windows(keys)))


def _shared_expert(keys: Keys) -> dict[str, Any]:
    """Return the fields of experts with a shared one, whose output has a gate."""
    size = integer(keys, "shared_expert_intermediate_size", 1, MAX_WIDTH)
    return {"shared_gate": True, "shared_size": size}


def _qwen2_moe(keys: Keys) -> ModelConfig:
    kinds = None
    if _uses_window(keys):
        # Unlike Qwen2: a window in every second layer before `max_window_layers`, none afterwards.
        late, count = integer(keys, "max_window_layers", 0, 2**30), keys.num_layers
        kinds = [KINDS[i % 2 == 0 and i < late] for i in range(count)]
    attention = keys.attention(bias=flag(keys, "qkv_bias"), output_bias=False)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    router = RouterConfig(normalized=flag(keys, "norm_topk_prob"))
    moe = keys.moe(router, **_shared_expert(keys))
    layers = windowed(layers, keys.windows(kinds, switched=True))
    return keys.model(sparse(layers, moe, sparse_dense_layers(keys)))


def _qwen3_moe(keys: Keys) -> ModelConfig:
    scores = keys.scores(window=keys.window(switched=True))
    attention = keys.attention(scores=scores, head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    moe = keys.moe(RouterConfig(normalized=flag(keys, "norm_topk_prob")))
    return keys.model(sparse(layers, moe, sparse_dense_layers(keys)))


def _qwen3_vl_moe(keys: Keys) -> ModelConfig:
    return _qwen3_moe(keys.changed(norm_topk_prob=True))


def _gated_delta(keys: Keys, *, by_key_head: bool) -> GatedDelta:
    key_heads = integer(keys, "linear_num_key_heads", 1, MAX_HEADS)
    value_heads = integer(keys, "linear_num_value_heads", 1, MAX_HEADS)
    if value_heads % key_heads:
        expected = f"a multiple of {key_heads} key heads"
        raise invalid("linear_num_value_heads", expected, value_heads)
    return GatedDelta(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=integer(keys, "linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_dim=integer(keys, "linear_value_head_dim", 1, MAX_HEAD_DIM),
        kernel=integer(keys, "linear_conv_kernel_dim", 2, MAX_KERNEL),
        norm_eps=keys.eps,
        by_key_head=by_key_head,
    )


def _hybrid_layers(keys: Keys, mixer: GatedDelta, **fields: Any) -> Layers:
    """Return layers with attention or the mixer; the fields are those of their MLPs or experts."""
    kinds, count = keys.layer_types, keys.num_layers
    if kinds is None:
        interval = integer(keys, "full_attention_interval", 1, MAX_LAYERS)
        kinds = [
            "linear_attention" if (i + 1) % interval else "full_attention" for i in range(count)
        ]
    attention = keys.attention(head_norms=HeadNorms("head"), gate=OutputGate())
    layers = keys.layers(attention=attention, **fields)
    where = mixer_layers(keys, kinds, "linear_attention")
    return mixing(layers, mixer, where, keys.activation_kind)


def _hybrid_model(keys: Keys, layers: Layers) -> ModelConfig:
    return keys.model(layers, norm=keys.norm(unit_offset=True))


def _qwen3_next(keys: Keys) -> ModelConfig:
    mixer = _gated_delta(keys, by_key_head=True)
    layers = _hybrid_layers(keys, mixer, mlp=keys.mlp(bias=False))
    if keys.get("num_local_experts") != 0:
        router = RouterConfig(normalized=flag(keys, "norm_topk_prob"))
        moe = keys.moe(router, **_shared_expert(keys))
        layers = sparse(layers, moe, sparse_dense_layers(keys))
    return _hybrid_model(keys, layers)


def _qwen3_5(keys: Keys) -> ModelConfig:
    mixer = _gated_delta(keys, by_key_head=False)
    return _hybrid_model(keys, _hybrid_layers(keys, mixer, mlp=keys.mlp(bias=False)))


def _qwen3_5_moe(keys: Keys) -> ModelConfig:
    moe = keys.moe(RouterConfig(normalized=True), **_shared_expert(keys))
    mixer = _gated_delta(keys, by_key_head=False)
    return _hybrid_model(keys, _hybrid_layers(keys, mixer, mlp=None, moe=moe))


_DEFAULTS = frozen(
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=32,
    sliding_window=4096,
    use_sliding_window=False,
    max_window_layers=28,
)

_MOE_KEYS = frozenset({"num_local_experts", "num_experts", "moe_intermediate_size"})

_QWEN3_MOE_DEFAULTS = frozen(
    intermediate_size=6144,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=4,
    use_sliding_window=False,
    num_local_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
)

_MIXER = {
    "mixer_conv": "linear_attn.conv1d.weight",
    "mixer_decay": "linear_attn.A_log",
    "mixer_step_bias": "linear_attn.dt_bias",
    "mixer_norm": "linear_attn.norm.weight",
    "mixer_out": "linear_attn.out_proj.weight",
}

_BY_KEY_HEAD = {
    "mixer_qkvz": "linear_attn.in_proj_qkvz.weight",
    "mixer_ba": "linear_attn.in_proj_ba.weight",
}

_SEPARATE = {
    "mixer_qkv": "linear_attn.in_proj_qkv.weight",
    "mixer_z": "linear_attn.in_proj_z.weight",
    "mixer_b": "linear_attn.in_proj_b.weight",
    "mixer_a": "linear_attn.in_proj_a.weight",
}

_HYBRID_DEFAULTS = frozen(
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    head_dim=256,
    partial_rotary_factor=0.25,
    full_attention_interval=4,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
)

_EXPERT_DEFAULTS = frozen(
    num_key_value_heads=2,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)


ARCHITECTURES: Architectures = {
    "Qwen2ForCausalLM": Architecture(
        model_type="qwen2",
        build=_qwen2,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=_DEFAULTS,
    ),
    "Qwen3ForCausalLM": Architecture(
        model_type="qwen3",
        build=_qwen3,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, head_dim=128),
    ),
    "Qwen2MoeForCausalLM": Architecture(
        model_type="qwen2_moe",
        build=_qwen2_moe,
        supported_keys=_MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT}),
        defaults=frozen(
            **{**_DEFAULTS, "num_key_value_heads": 16},
            intermediate_size=5632,
            qkv_bias=True,
            num_local_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
    ),
    "Qwen3MoeForCausalLM": Architecture(
        model_type="qwen3_moe",
        build=_qwen3_moe,
        supported_keys=_MOE_KEYS | WINDOW_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(EXPERTS),
        defaults=_QWEN3_MOE_DEFAULTS,
    ),
    "Qwen3VLMoeTextForCausalLM": Architecture(
        model_type="qwen3_vl_moe_text",
        short_name="qwen3_vl_moe",
        build=_qwen3_vl_moe,
        supported_keys=_MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        tensors=llama_tensors(
            {
                "router": "mlp.gate.weight",
                "experts_gate_up": "mlp.experts.gate_up_proj",
                "experts_down": "mlp.experts.down_proj",
            }
        ),
        defaults=frozen(
            **{
                **_QWEN3_MOE_DEFAULTS,
                "num_key_value_heads": 16,
                "max_position_embeddings": 128_000,
            },
            rope_theta=5e5,
            tie_word_embeddings=True,
        ),
    ),
    "Qwen3NextForCausalLM": Architecture(
        model_type="qwen3_next",
        build=_qwen3_next,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_BY_KEY_HEAD}),
        defaults=frozen(
            **_HYBRID_DEFAULTS,
            **_EXPERT_DEFAULTS,
            intermediate_size=5632,
            num_local_experts=512,
            num_experts_per_tok=10,
            decoder_sparse_step=1,
            norm_topk_prob=True,
        ),
    ),
    "Qwen3_5ForCausalLM": Architecture(
        model_type="qwen3_5_text",
        short_name="qwen3_5",
        build=_qwen3_5,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors({**_MIXER, **_SEPARATE}),
        defaults=frozen(**_HYBRID_DEFAULTS, num_key_value_heads=4),
    ),
    "Qwen3_5MoeForCausalLM": Architecture(
        model_type="qwen3_5_moe_text",
        short_name="qwen3_5_moe",
        build=_qwen3_5_moe,
        supported_keys=MOE_KEYS | {"partial_rotary_factor"},
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERT, **_MIXER, **_SEPARATE}),
        defaults=frozen(
            **_HYBRID_DEFAULTS, **_EXPERT_DEFAULTS, num_local_experts=256, num_experts_per_tok=8
        ),
    ),
}
