"""Keys of `config.json` that change the mathematics, for the families that do not read them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.fields import Fields, bad, mapping

# By key, the values that change nothing, beside null. A family that reads a key says so.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "add_cross_attention": (False,),
        "alibi": (False,),
        "attention_multiplier": (),
        "attn_logit_softcapping": (),
        "clip_qkv": (),
        "embedding_multiplier": (1,),
        "final_logit_softcapping": (),
        "is_encoder_decoder": (False,),
        "logit_scale": (1,),
        "logits_scaling": (1,),
        "moe_intermediate_size": (),
        "n_routed_experts": (0, 1),
        "no_rope_layers": (),
        "num_experts": (0, 1),
        "num_local_experts": (0, 1),
        "parallel_attn": (False,),
        "partial_rotary_factor": (1,),
        "qk_layernorm": (False,),
        "query_pre_attn_scalar": (),
        "residual_multiplier": (1,),
        "rotary_dim": (),
        "use_bidirectional_attention": (False,),
        "use_parallel_residual": (False,),
        "use_qk_norm": (False,),
        # No family reads these.
        "apply_residual_connection_post_layernorm": (False,),
        "attention_sinks": (False,),
        "kv_lora_rank": (),
        "q_lora_rank": (),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_embedding": (False,),
    }
)


def reject_unsupported_keys(config: Fields, reads: Collection[str]) -> None:
    """Raise `BadModelFile` for a key that matters and that nobody reads.

    What a family ignores must not be what makes its answers wrong.
    """
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise BadModelFile(
                f"config.json has a {field}: quantized weights are not computed with yet",
                "swiftchat convert MODEL NEW makes a plain model of it",
            )
    rope = mapping(config, "rope_parameters") or mapping(config, "rope_scaling") or {}
    for name, values in NEUTRAL.items():
        value = rope.get(name) if config.get(name) is None else config[name]
        if value is not None and name not in reads and not _among(value, values):
            wanted = " or ".join(["absent", *(repr(each) for each in values)])
            raise bad(name, f"{wanted} in a model of this family", value)


def _among(value: object, values: tuple[Any, ...]) -> bool:
    return any(value == each for each in values)
