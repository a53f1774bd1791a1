"""Llama 4 (text models).

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.rope import QueryGrowth
from swiftchat.weights.architectures.parts.router import RouterConfig


def _llama4(config: Fields) -> Mapping[str, Any]:
    experts, count = integer(config, "num_local_experts", 1, MAX_EXPERTS), num_layers(config)
    width = integer(config, "intermediate_size", 1, MAX_WIDTH)
    unrotated = _unrotated_layers(config)
    kinds = layer_types(config)
    if kinds is None:
        kinds = ["full_attention" if i in unrotated else "chunked_attention" for i in range(count)]
    if len(kinds) != count or {*kinds} - {"full_attention", "chunked_attention"}:
        raise invalid("layer_types", f"{count} times full_attention or chunked_attention", kinds)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    is_chunked = len(full) < count
    growth = None
    if flag(config, "attn_temperature_tuning"):
        growth = QueryGrowth(
            number(config, "attn_scale", above=-1e3, below=1e3),
            number(config, "floor_scale", above=0.0, below=1e9),
            shift=1,
            unrotated_only=True,
        )
    return {
        "mlp_bias": False,
        "intermediate_size": integer(config, "intermediate_size_mlp", 1, MAX_WIDTH),
        "unrotated_layers": unrotated,
        "attention_chunk": (
            integer(config, "attention_chunk_size", 1, MAX_CONTEXT) if is_chunked else None
        ),
        "full_layers": full if is_chunked else frozenset(),
        "query_growth": growth,
        "qk_norm": "head" if flag(config, "use_qk_norm") else None,
        "qk_norm_weights": False,
        "qk_norm_after_rope": True,
        "num_experts": experts,
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "expert_size": width,
        "shared_expert_size": width,
        "dense_layers": _dense_layers(config),
        "router": RouterConfig(scores="sigmoid", by_logits=True, on_input=True),
    }


def _unrotated_layers(config: Fields) -> frozenset[int]:
    """Return the layers with a 0 in `no_rope_layers`, by default every fourth."""
    count, found = num_layers(config), config.get("no_rope_layers")
    if not found:
        interval = integer(config, "no_rope_layer_interval", 1, MAX_LAYERS)
        found = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(found, list) or len(found) < count or any(n not in (0, 1) for n in found):
        raise invalid("no_rope_layers", f"a list of {count} numbers 0 or 1", found)
    return frozenset(i for i in range(count) if not found[i])


def _dense_layers(config: Fields) -> frozenset[int]:
    """Return the layers that are not in `moe_layers`, by default every nth is."""
    count, found = num_layers(config), config.get("moe_layers")
    if found is None:
        step = integer(config, "interleave_moe_layer_step", 1, MAX_LAYERS)
        found = list(range(step - 1, count, step))
    if not isinstance(found, list) or not all(isinstance(layer, int) for layer in found):
        raise invalid("moe_layers", "a list of layers", found)
    return frozenset(range(count)) - frozenset(found)


LLAMA4: Mapping[str, Architecture] = {
    "Llama4ForCausalLM": Architecture(
        name="llama4",
        model_type="llama4_text",
        overrides=_llama4,
        interleaved_rope=True,
        tensors=llama_tensors(
            {
                "gate": "feed_forward.gate_proj.weight",
                "up": "feed_forward.up_proj.weight",
                "down": "feed_forward.down_proj.weight",
                "router": "feed_forward.router.weight",
                "experts_gate_up": "feed_forward.experts.gate_up_proj",
                "experts_down": "feed_forward.experts.down_proj",
                "shared_gate": "feed_forward.shared_expert.gate_proj.weight",
                "shared_up": "feed_forward.shared_expert.up_proj.weight",
                "shared_down": "feed_forward.shared_expert.down_proj.weight",
            }
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        supported_keys=frozenset({"num_local_experts", "no_rope_layers", "use_qk_norm"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=5e5,
            intermediate_size_mlp=16_384,
            num_local_experts=16,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            no_rope_layer_interval=4,
            attention_chunk_size=8192,
            attn_temperature_tuning=True,
            floor_scale=8192,
            attn_scale=0.1,
            use_qk_norm=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
