"""Keys of `config.json` that change the computation; rejected if the architecture ignores them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.fields import Fields, invalid, mapping

# For each key, the values besides null that change nothing. `Architecture.supported_keys` lists
# the keys that an architecture reads.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
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
        # No architecture reads these.
        "apply_residual_connection_post_layernorm": (False,),
        "attention_sinks": (False,),
        "kv_lora_rank": (),
        "q_lora_rank": (),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_embedding": (False,),
    }
)


def reject_unsupported_keys(config: Fields, supported: Collection[str]) -> None:
    """Raise `BadModelFile` for a key that changes the computation and is not in `supported`.

    Without this check an ignored key would give wrong answers silently.
    """
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise BadModelFile(
                f"config.json has a {field}: these quantized weights are not supported directly",
                "convert the model first: swiftchat convert MODEL NEW",
            )
    rope = mapping(config, "rope_parameters") or mapping(config, "rope_scaling") or {}
    for name, neutral in NEUTRAL_VALUES.items():
        value = rope.get(name) if config.get(name) is None else config[name]
        if value is not None and name not in supported and not any(value == n for n in neutral):
            expected = " or ".join(["absent", *map(repr, neutral)])
            raise invalid(name, f"{expected} for this architecture", value)
