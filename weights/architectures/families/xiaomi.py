"""Xiaomi: MiMo.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    MOE_KEYS,
    experts_of_width,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_heads,
    num_layers,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.layer_readers import KINDS, ropes
from swiftchat.weights.architectures.parts.layers import LayerSizes


def _mimo_v2(config: Fields) -> Mapping[str, Any]:
    count, heads = num_layers(config), num_heads(config)
    kinds = layer_types(config)
    if kinds is None:
        kinds = [KINDS[bool(i and (i + 1) % 6)] for i in range(count)]
    if len(kinds) != count or {*kinds} - {*KINDS}:
        raise invalid("layer_types", f"a list of {count} of {' and '.join(KINDS)}", str(kinds))
    window = optional_integer(config, "sliding_window_size", 1, MAX_CONTEXT - 1)
    window = integer(config, "sliding_window", 1, MAX_CONTEXT) if window is None else window + 1
    kv_heads = integer(config, "num_key_value_heads", 1, heads)
    if heads % (2 * kv_heads):
        raise invalid("num_key_value_heads", f"half a divisor of {heads} heads", kv_heads)
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    sizes = [
        LayerSizes(head_dim, kv_heads * (2 if kind == "sliding_attention" else 1), inner, heads)
        for kind in kinds
    ]
    router = sigmoid_router(
        config, normalized=flag(config, "norm_topk_prob"), scale="routed_scaling_factor"
    )
    value_dim = integer(config, "v_head_dim", 1, head_dim)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    _check_published(config, kinds, {"kv_heads": kv_heads, "head_dim": head_dim, "v": value_dim})
    return {
        **experts_of_width(config, router, None),
        **ropes(config, _MIMO_ROPES, 0.334),
        "sliding_window": window,
        "full_layers": full,
        "value_size": value_dim,
        "layer_sizes": tuple(sizes),
        "attention_sinks": True,
        "windowed_sinks": True,
        # The factor of values is one of their weighted sum.
        "attention_out_scale": optional_number(
            config, "attention_value_scale", above=0.0, below=1e6
        )
        or 1.0,
        "dense_layers": listed_dense(config, 1),
    }


def _check_published(config: Fields, kinds: list[str], sizes: Mapping[str, int]) -> None:
    """Raise `BadModelFile` if a key of the published files, which transformers ignores, differs."""
    expected: dict[str, Any] = {
        "swa_num_key_value_heads": 2 * sizes["kv_heads"],
        "swa_num_attention_heads": num_heads(config),
        "swa_head_dim": sizes["head_dim"],
        "swa_v_head_dim": sizes["v"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": config.get("rms_norm_eps"),
    }
    if config.get("rope_parameters") is None:
        expected |= {"swa_rope_theta": _MIMO_ROPES["sliding_attention"]["rope_theta"]}
        expected |= {"rope_theta": _MIMO_ROPES["full_attention"]["rope_theta"]}
    for name, value in expected.items():
        if config.get(name) not in (None, value):
            raise invalid(name, str(value), str(config[name]))


_MIMO_ROPES = frozen(
    full_attention=frozen(rope_theta=5e6), sliding_attention=frozen(rope_theta=1e4)
)


XIAOMI: Mapping[str, Architecture] = {
    "MiMoV2FlashForCausalLM": Architecture(
        name="mimo_v2_flash",
        model_type="mimo_v2_flash",
        overrides=_mimo_v2,
        supported_keys=MOE_KEYS | {"sliding_window"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                "router_correction": "mlp.gate.e_score_correction_bias",
                "sinks": "self_attn.attention_sink_bias",
            }
        ),
        defaults=frozen(
            vocab_size=152_576,
            intermediate_size=16_384,
            moe_intermediate_size=2048,
            num_hidden_layers=48,
            num_attention_heads=64,
            num_key_value_heads=4,
            n_routed_experts=256,
            num_experts_per_tok=8,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            head_dim=192,
            v_head_dim=128,
            sliding_window=129,
            attention_value_scale=0.707,
            routed_scaling_factor=1.0,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            bos_token_id=1,
        ),
    ),
}
