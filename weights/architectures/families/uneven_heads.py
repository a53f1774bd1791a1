"""Laguna and MiMo-V2-Flash: experts, and other numbers of heads in layers with a window.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.moe import (
    MOE_KEYS,
    SHARED_EXPERTS,
    experts_of_width,
    listed_dense,
)
from swiftchat.weights.architectures.families.qwen import EXPERTS
from swiftchat.weights.architectures.families.sigmoid_routers import sigmoid_router
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    number,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.layers import LayerSizes
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig

_KINDS = ("full_attention", "sliding_attention")


def _ropes(config: Fields, default: Fields, fraction: float) -> Mapping[str, Any]:
    """Return the rotations of both kinds of layers; a part of a head is `fraction` by default."""
    if config.get("rope_scaling"):  # the reference does not read it
        raise invalid("rope_scaling", "absent, and rope_parameters instead", "an object")
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    named = mapping(config, "rope_parameters") or default
    context = {"max_position_embeddings": config.get("max_position_embeddings")}
    ropes = []
    for kind in _KINDS:
        rope = mapping(named, kind)
        if rope is None:
            raise invalid(f"rope_parameters.{kind}", "an object", None)
        rope = {"partial_rotary_factor": fraction, **rope}
        ropes.append(RopeConfig.from_hf({**context, "rope_parameters": rope}, head_dim))
    return {"rope": ropes[0], "local_rope": ropes[1]}


def _heads(config: Fields) -> list[int]:
    """Return the number of query heads of each layer."""
    listed, count = config.get("num_attention_heads_per_layer"), num_layers(config)
    if listed is None:
        return [num_heads(config)] * count
    if not isinstance(listed, list) or len(listed) != count:
        raise invalid("num_attention_heads_per_layer", f"a list of {count} numbers", str(listed))
    name = "num_attention_heads_per_layer"
    return [integer({name: each}, name, 1, MAX_HEADS) for each in listed]


def _laguna(config: Fields) -> Mapping[str, Any]:
    gating = config.get("gating")
    if gating not in (True, "per-head", "per-element"):
        raise invalid("gating", "true, per-head or per-element", gating)
    if flag(config, "moe_apply_router_weight_on_input"):
        raise invalid("moe_apply_router_weight_on_input", "false", True)
    heads = _heads(config)
    kv_heads = integer(config, "num_key_value_heads", 1, MAX_HEADS)
    if any(each % kv_heads for each in heads):
        raise invalid("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    sizes = tuple(LayerSizes(head_dim, kv_heads, inner, each) for each in heads)
    softcap = optional_number(config, "moe_router_logit_softcapping", above=-1e-9, below=1e6)
    router = RouterConfig(
        "sigmoid",
        correction=True,
        normalized=True,
        scale=number(config, "moe_routed_scaling_factor", above=0.0, below=1e6),
        softcap=softcap or 0.0,
    )
    bias, kinds = flag(config, "attention_bias"), layer_types(config)
    return {
        **experts_of_width(config, router, None),
        **_ropes(config, _LAGUNA_ROPES, 1.0),
        "layer_types": ["full_attention"] * len(heads) if kinds is None else kinds,
        "attention_bias": bias,
        "output_bias": bias,
        "layer_sizes": sizes if len({*heads, num_heads(config)}) > 1 else (),
        "qk_norm": "head",
        "attention_gate": True,
        "gate_by_head": gating != "per-element",
        "softplus_gate": True,
        "shared_expert_size": integer(config, "shared_expert_intermediate_size", 1, MAX_WIDTH),
        "dense_layers": listed_dense(config, 1),
    }


def _mimo_v2(config: Fields) -> Mapping[str, Any]:
    count, heads = num_layers(config), num_heads(config)
    kinds = layer_types(config)
    if kinds is None:
        kinds = [_KINDS[bool(i and (i + 1) % 6)] for i in range(count)]
    if len(kinds) != count or {*kinds} - {*_KINDS}:
        raise invalid("layer_types", f"a list of {count} of {' and '.join(_KINDS)}", str(kinds))
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
        **_ropes(config, _MIMO_ROPES, 0.334),
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


_LAGUNA_ROPES = frozen(
    full_attention=frozen(rope_theta=5e5, partial_rotary_factor=0.5),
    sliding_attention=frozen(rope_theta=1e4, partial_rotary_factor=1.0),
)
_MIMO_ROPES = frozen(
    full_attention=frozen(rope_theta=5e6), sliding_attention=frozen(rope_theta=1e4)
)

UNEVEN_HEADS: Mapping[str, Architecture] = {
    "LagunaForCausalLM": Architecture(
        name="laguna",
        model_type="laguna",
        overrides=_laguna,
        windowed=True,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **EXPERTS,
                **{
                    name: rest.replace("experts", "expert") for name, rest in SHARED_EXPERTS.items()
                },
                "router_correction": "mlp.experts.e_score_correction_bias",
                "attn_gate": "self_attn.g_proj.weight",
            }
        ),
        defaults=frozen(
            vocab_size=100_352,
            intermediate_size=8192,
            num_hidden_layers=40,
            num_attention_heads=48,
            num_key_value_heads=8,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-6,
            num_local_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            sliding_window=512,
            head_dim=128,
            gating=True,
            moe_routed_scaling_factor=1.0,
        ),
    ),
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
