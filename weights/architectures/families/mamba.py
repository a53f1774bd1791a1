"""Granite 4, Bamba and Falcon-H1: Mamba-2, and attention in some layers or in all.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.families.granite_cohere import (
    GRANITE_DEFAULTS,
    GRANITE_EXPERTS,
    MULTIPLIERS,
    SHARED_MLP,
    granite,
)
from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.families.moe import moe_overrides
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, llama_tensors
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    num_heads,
    num_layers,
    number,
    number_list,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.parts.rope import RopeConfig

# Infinity in JSON, as written by different versions of transformers.
_NO_LIMITS = [[0, last] for last in (float("inf"), "Infinity", {"__float__": "Infinity"})]
_OLD_KINDS = frozen(mamba="linear_attention", attention="full_attention")


def check_no_limits(config: Fields) -> None:
    """Raise `BadModelFile` if the steps of a state space model have limits."""
    limits = config.get("time_step_limit")
    if limits is not None and limits not in _NO_LIMITS:
        # Transformers applies other limits to prompts, but not to decode steps.
        raise invalid("time_step_limit", "[0, Infinity]", str(limits))


def mamba2(config: Fields) -> Mamba2:
    """Read the keys of Granite 4, Bamba and Falcon-H1."""
    heads = integer(config, "mamba_n_heads", 1, MAX_HEADS)
    groups = integer(config, "mamba_n_groups", 1, heads)
    own_width = optional_integer(config, "mamba_d_ssm", 1, MAX_WIDTH)
    width = own_width or integer(config, "mamba_expand", 1, MAX_WIDTH) * hidden_size(config)
    head_dim = width // heads
    if config.get("mamba_d_head") not in (None, "auto"):
        head_dim = integer(config, "mamba_d_head", 1, MAX_WIDTH)
    if heads * head_dim != width:
        raise invalid("mamba_n_heads times mamba_d_head", str(width), heads * head_dim)
    if heads % groups:
        raise invalid("mamba_n_groups", f"a divisor of {heads} heads", groups)
    check_no_limits(config)
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_size=integer(config, "mamba_d_state", 1, MAX_HEAD_DIM),
        kernel=integer(config, "mamba_d_conv", 2, MAX_KERNEL),
        norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
        in_bias=flag(config, "mamba_proj_bias"),
        out_bias=flag(config, "mamba_proj_bias"),
        conv_bias=flag(config, "mamba_conv_bias"),
    )


def _granite_hybrid(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        kinds = layer_types({**config, "layer_types": config.get("layers_block_type")})
    if kinds is not None:
        kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    shared = integer(config, "shared_intermediate_size", 1, MAX_WIDTH)
    experts: Mapping[str, Any] = {"intermediate_size": shared}
    if config.get("num_local_experts") not in (0, None):
        experts = {**moe_overrides(config), "shared_expert_size": shared}
    return {
        "mlp_bias": False,
        **experts,
        **granite(config),
        "attention_bias": flag(config, "attention_bias"),
        **({} if config.get("position_embedding_type") == "rope" else {"rope": None}),
        "mixer": mamba2(config),
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
    }


def _bamba(config: Fields) -> Mapping[str, Any]:
    count, listed = num_layers(config), config.get("attn_layer_indices")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise invalid("attn_layer_indices", "a list of layers", listed)
    kinds = ["full_attention" if i in listed else "linear_attention" for i in range(count)]
    # The reference ignores another fraction unless it is among the parameters of the rotation.
    config = {**config, "partial_rotary_factor": 0.5}
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    return {
        "mixer": mamba2(config),
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def _falcon_h1(config: Fields) -> Mapping[str, Any]:
    def scale(name: str) -> float:
        return number(config, name, above=-1e6, below=1e6, default=1.0)

    def scales(name: str, count: int) -> tuple[float, ...]:
        return (1.0,) * count if config.get(name) is None else number_list(config, name, count)

    inputs, keys = scale("attention_in_multiplier"), scale("key_multiplier")
    if inputs != 1.0 and flag(config, "attention_bias"):
        raise invalid("attention_in_multiplier", "1 with attention_bias", inputs)
    # Queries and keys both have the scale of the input.
    scores = inputs * inputs * keys
    if not 1e-6 < scores < 1e6:
        raise invalid("key_multiplier", "a factor of scores between 1e-6 and 1e6", scores)
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    gate, down = scales("mlp_multipliers", 2)
    mixer = mamba2(config)
    return {
        "query_scalar": head_dim / scores**2,
        "attention_in_scale": inputs,
        "attention_out_scale": inputs * scale("attention_out_multiplier"),
        "mixer_out_scale": scale("ssm_out_multiplier"),
        "gate_scale": gate,
        "mlp_out_scale": down,
        "embedding_scale": scale("embedding_multiplier"),
        "logit_scale": scale("lm_head_multiplier"),
        "mixer_with_attention": True,
        "mixer_layers": frozenset(range(num_layers(config))),
        "mixer": replace(
            mixer,
            norm_eps=mixer.norm_eps if flag(config, "mamba_rms_norm") else None,
            out_bias=flag(config, "projectors_bias"),
            gate_last=flag(config, "mamba_norm_before_gate"),
            scales=(scale("ssm_in_multiplier"), *scales("ssm_multipliers", 5)),
        ),
    }


MIXER = {
    "mixer_in": "mamba.in_proj.weight",
    "mixer_in_bias": "mamba.in_proj.bias",
    "mixer_conv": "mamba.conv1d.weight",
    "mixer_conv_bias": "mamba.conv1d.bias",
    "mixer_decay": "mamba.A_log",
    "mixer_step_bias": "mamba.dt_bias",
    "mixer_skip": "mamba.D",
    "mixer_norm": "mamba.norm.weight",
    "mixer_out": "mamba.out_proj.weight",
    "mixer_out_bias": "mamba.out_proj.bias",
}
FEED_FORWARD = frozen(
    mlp_norm="pre_ff_layernorm.weight",
    gate="feed_forward.gate_proj.weight",
    up="feed_forward.up_proj.weight",
    down="feed_forward.down_proj.weight",
    gate_bias="feed_forward.gate_proj.bias",
    up_bias="feed_forward.up_proj.bias",
    down_bias="feed_forward.down_proj.bias",
    final_norm="model.final_layernorm.weight",
)
_DEFAULTS = frozen(
    mamba_n_heads=128,
    mamba_n_groups=1,
    mamba_d_state=256,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_conv_bias=True,
)

MAMBA: Mapping[str, Architecture] = {
    "GraniteMoeHybridForCausalLM": Architecture(
        name="granitemoehybrid",
        model_type="granitemoehybrid",
        overrides=_granite_hybrid,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **MIXER,
                **GRANITE_EXPERTS,
                **SHARED_MLP,
                "gate_up": SHARED_MLP["shared_gate_up"],
                "down": SHARED_MLP["shared_down"],
            },
            without=("gate", "up"),
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            **_DEFAULTS,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=1024,
        ),
    ),
    "BambaForCausalLM": Architecture(
        name="bamba",
        model_type="bamba",
        overrides=_bamba,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors(
            {
                **MIXER,
                **FEED_FORWARD,
            }
        ),
        defaults=frozen(
            **_DEFAULTS,
            max_position_embeddings=262_144,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            partial_rotary_factor=0.5,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "FalconH1ForCausalLM": Architecture(
        name="falcon_h1",
        model_type="falcon_h1",
        overrides=_falcon_h1,
        supported_keys=frozenset({"embedding_multiplier"}),
        tensors=llama_tensors({**MIXER, **FEED_FORWARD}),
        defaults=frozen(
            **_DEFAULTS,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            mamba_d_ssm=1024,
            mamba_norm_before_gate=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
