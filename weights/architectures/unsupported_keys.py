"""Keys of `config.json` that change the computation of some architectures, but not of all."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.fields import Fields, invalid, mapping

# For each key, the values besides null that change nothing. `Architecture.supported_keys` lists
# the keys that an architecture reads, `Architecture.rejected_keys` those that it cannot compute.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "add_cross_attention": (False,),
        "alibi": (False,),
        "attention_multiplier": (),
        "attn_logit_softcapping": (),
        "clip_qkv": (),
        "embedding_multiplier": (1,),
        "final_logit_softcapping": (),
        "interleaved_sliding_window": (),
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
        "rope_interleave": (False,),
        "rotary_dim": (),
        "sliding_window": (0,),
        "use_bidirectional_attention": (False,),
        "use_parallel_residual": (False,),
        "use_qk_norm": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "attention_sinks": (False,),
        "kv_lora_rank": (),
        "q_lora_rank": (),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_embedding": (False,),
    }
)


def ignored_keys(
    config: Fields, supported: Collection[str], rejected: Collection[str]
) -> tuple[str, ...]:
    """Return the keys that change the computation elsewhere and that this architecture ignores.

    As in transformers. Raises `BadModelFile` for a key in `rejected`, which transformers reads and
    this program cannot compute: it would give wrong answers silently.
    """
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise BadModelFile(
                f"config.json has a {field}: these quantized weights are not supported directly",
                "convert the model first: swiftchat convert MODEL NEW",
            )
    rope = mapping(config, "rope_scaling") or mapping(config, "rope_parameters") or {}
    ignored = []
    for name, neutral in NEUTRAL_VALUES.items():
        value = rope.get(name) if config.get(name) is None else config[name]
        if value is None or name in supported or any(value == n for n in neutral):
            continue
        if name in rejected:
            expected = " or ".join(["absent", *map(repr, neutral)])
            raise invalid(name, f"{expected} for this architecture", value)
        ignored.append(name)
    return tuple(ignored)
