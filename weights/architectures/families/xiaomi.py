"""Xiaomi: MiMo."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import Values
from swiftchat.weights.architectures.parts.expert_readers import (
    CORRECTION,
    EXPERTS,
    MOE_KEYS,
    listed_dense,
    sigmoid_router,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    integer,
    invalid,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import KINDS, ropes
from swiftchat.weights.architectures.parts.layers import LayerConfig, sparse
from swiftchat.weights.architectures.parts.model import ModelConfig


def _mimo_v2(keys: Keys) -> ModelConfig:
    count, heads, kinds = keys.num_layers, keys.num_heads, keys.layer_types
    if kinds is None:
        kinds = [KINDS[bool(i and (i + 1) % 6)] for i in range(count)]
    if len(kinds) != count or {*kinds} - {*KINDS}:
        raise invalid("layer_types", f"a list of {count} of {' and '.join(KINDS)}", str(kinds))
    window = optional_integer(keys, "sliding_window_size", 1, MAX_CONTEXT - 1)
    window = integer(keys, "sliding_window", 1, MAX_CONTEXT) if window is None else window + 1
    kv_heads = integer(keys, "num_key_value_heads", 1, heads)
    if heads % (2 * kv_heads):
        raise invalid("num_key_value_heads", f"half a divisor of {heads} heads", kv_heads)
    head_dim = keys.head_dim
    value_dim = integer(keys, "v_head_dim", 1, head_dim)
    _check_published(keys, kinds, {"kv_heads": kv_heads, "head_dim": head_dim, "v": value_dim})
    rope, local_rope = ropes(keys, _MIMO_ROPES, 0.334)
    # The factor of values is one of their weighted sum.
    scale = optional_number(keys, "attention_value_scale", above=0.0, below=1e6) or 1.0
    full = keys.attention(
        num_kv_heads=kv_heads,
        values=Values(value_dim),
        rope=rope,
        output_bias=False,
        out_scale=scale,
    )
    local = replace(full, num_kv_heads=2 * kv_heads, rope=local_rope)
    local = local.with_scores(window=window, sinks=True)
    by_kind = {"full_attention": full, "sliding_attention": local}
    mlp = keys.mlp(bias=False)
    layers = tuple(LayerConfig(by_kind[kind], mlp=mlp) for kind in kinds)
    return keys.model(sparse(layers, keys.moe(sigmoid_router(keys)), listed_dense(keys, 1)))


def _check_published(keys: Keys, kinds: list[str], sizes: Mapping[str, int]) -> None:
    """Raise `BadModelFile` if a key of the published files, which transformers ignores, differs."""
    expected: dict[str, Any] = {
        "swa_num_key_value_heads": 2 * sizes["kv_heads"],
        "swa_num_attention_heads": keys.num_heads,
        "swa_head_dim": sizes["head_dim"],
        "swa_v_head_dim": sizes["v"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": keys.get("rms_norm_eps"),
    }
    if keys.get("rope_parameters") is None:
        expected |= {"swa_rope_theta": _MIMO_ROPES["sliding_attention"]["rope_theta"]}
        expected |= {"rope_theta": _MIMO_ROPES["full_attention"]["rope_theta"]}
    for name, value in expected.items():
        if keys.get(name) not in (None, value):
            raise invalid(name, str(value), str(keys[name]))


_MIMO_ROPES = frozen(
    full_attention=frozen(rope_theta=5e6), sliding_attention=frozen(rope_theta=1e4)
)


ARCHITECTURES: Architectures = {
    "MiMoV2FlashForCausalLM": Architecture(
        model_type="mimo_v2_flash",
        build=_mimo_v2,
        supported_keys=MOE_KEYS | {"sliding_window"},
        renamed=frozen(num_local_experts="n_routed_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **CORRECTION,
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
