"""State space models: Mamba, Falcon-Mamba and Mamba-2 without attention, and Jamba with it.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL
from swiftchat.weights.architectures.families.mamba import FEED_FORWARD, MIXER, check_no_limits
from swiftchat.weights.architectures.families.moe import moe_overrides
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import Mamba2, StateMixer
from swiftchat.weights.architectures.parts.router import RouterConfig

# A state has no longest context, but the blocks of a sequence still count its tokens.
MAX_STATE_CONTEXT = 2**18


def _only(config: Fields, mixer: StateMixer, width: int) -> Mapping[str, Any]:
    """Return the fields of a model whose layers have the mixer and nothing else."""
    return {
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
        "rope": None,
        "intermediate_size": width,
        "max_context_tokens": MAX_STATE_CONTEXT,
        "single_branch": True,
        "mixer": mixer,
        "mixer_layers": frozenset(range(num_layers(config))),
    }


def step_rank(config: Fields, name: str) -> int:
    """Read the rank of the projections that make steps; by default a sixteenth of the width."""
    if config.get(name) in (None, "auto"):
        return -(-hidden_size(config) // 16)
    return integer(config, name, 1, MAX_WIDTH)


def _mamba(config: Fields) -> Mapping[str, Any]:
    width = optional_integer(config, "intermediate_size", 1, MAX_WIDTH)
    width = width or integer(config, "expand", 1, MAX_WIDTH) * hidden_size(config)
    eps = config.get("mixer_rms_eps")
    mixer = Mamba(
        width=width,
        state_size=integer(config, "state_size", 1, MAX_HEAD_DIM),
        step_rank=step_rank(config, "time_step_rank"),
        kernel=integer(config, "conv_kernel", 2, MAX_KERNEL),
        bias=flag(config, "use_bias"),
        conv_bias=flag(config, "use_conv_bias"),
        norm_eps=None if eps is None else number(config, "mixer_rms_eps", above=0.0, below=1.0),
    )
    return _only(config, mixer, width)


def _mamba2(config: Fields) -> Mapping[str, Any]:
    heads = integer(config, "num_heads", 1, MAX_HEADS)
    groups = integer(config, "n_groups", 1, heads)
    head_dim = integer(config, "head_dim", 1, MAX_WIDTH)
    width = integer(config, "expand", 1, MAX_WIDTH) * hidden_size(config)
    if heads * head_dim != width:
        raise invalid("num_heads times head_dim", str(width), heads * head_dim)
    if heads % groups:
        raise invalid("n_groups", f"a divisor of {heads} heads", groups)
    check_no_limits(config)
    mixer = Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_size=integer(config, "state_size", 1, MAX_HEAD_DIM),
        kernel=integer(config, "conv_kernel", 2, MAX_KERNEL),
        norm_eps=number(config, "layer_norm_epsilon", above=0.0, below=1.0),
        in_bias=flag(config, "use_bias"),
        out_bias=flag(config, "use_bias"),
        conv_bias=flag(config, "use_conv_bias"),
    )
    return _only(config, mixer, width)


def _every(config: Fields, period: str, offset: str) -> frozenset[int]:
    step = integer(config, period, 1, MAX_LAYERS)
    first = integer(config, offset, 0, step - 1)
    return frozenset(range(first, num_layers(config), step))


def _jamba(config: Fields) -> Mapping[str, Any]:
    layers = frozenset(range(num_layers(config)))
    experts: Mapping[str, Any] = {}
    if integer(config, "num_local_experts", 1, MAX_EXPERTS) > 1:
        sparse = _every(config, "expert_layer_period", "expert_layer_offset")
        experts = {
            **moe_overrides(config),
            "router": RouterConfig(),
            "dense_layers": layers - sparse,
        }
    return {
        **experts,
        "attention_bias": False,
        "mlp_bias": False,
        "rope": None,
        "mixer_layers": layers - _every(config, "attn_layer_period", "attn_layer_offset"),
        "mixer": Mamba(
            width=integer(config, "mamba_expand", 1, MAX_WIDTH) * hidden_size(config),
            state_size=integer(config, "mamba_d_state", 1, MAX_HEAD_DIM),
            step_rank=step_rank(config, "mamba_dt_rank"),
            kernel=integer(config, "mamba_d_conv", 2, MAX_KERNEL),
            bias=flag(config, "mamba_proj_bias"),
            conv_bias=flag(config, "mamba_conv_bias"),
            norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
            norm_weights=True,
        ),
    }


MAMBA_TENSORS = {
    **{name: rest.removeprefix("mamba.") for name, rest in MIXER.items()},
    "mixer_x": "x_proj.weight",
    "mixer_step": "dt_proj.weight",
    "mixer_step_bias": "dt_proj.bias",
}


def _only_tensors(mixer: Mapping[str, str]) -> Mapping[str, str]:
    return tensor_names(
        {"attn_norm": "norm.weight", **{name: f"mixer.{rest}" for name, rest in mixer.items()}},
        embed="backbone.embeddings.weight",
        final_norm="backbone.norm_f.weight",
        lm_head="lm_head.weight",
        layer="backbone.layers.{i}.",
    )


_ONLY_DEFAULTS = frozen(
    num_attention_heads=1,
    layer_norm_epsilon=1e-5,
    expand=2,
    conv_kernel=4,
    use_conv_bias=True,
    bos_token_id=0,
)
_MAMBA_DEFAULTS = frozen(**_ONLY_DEFAULTS, state_size=16, tie_word_embeddings=True, eos_token_id=0)

STATE_SPACE: Mapping[str, Architecture] = {
    "MambaForCausalLM": Architecture(
        name="mamba",
        model_type="mamba",
        overrides=lambda config: _mamba({**config, "mixer_rms_eps": None}),
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=_only_tensors(MAMBA_TENSORS),
        defaults=_MAMBA_DEFAULTS,
    ),
    "FalconMambaForCausalLM": Architecture(
        name="falcon_mamba",
        model_type="falcon_mamba",
        overrides=_mamba,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=_only_tensors(MAMBA_TENSORS),
        defaults=frozen(**_MAMBA_DEFAULTS, mixer_rms_eps=1e-6),
    ),
    "Mamba2ForCausalLM": Architecture(
        name="mamba2",
        model_type="mamba2",
        overrides=_mamba2,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=_only_tensors({name: rest.removeprefix("mamba.") for name, rest in MIXER.items()}),
        defaults=frozen(
            **_ONLY_DEFAULTS,
            num_heads=128,
            head_dim=64,
            state_size=128,
            n_groups=8,
            eos_token_id=2,
        ),
    ),
    "JambaForCausalLM": Architecture(
        name="jamba",
        model_type="jamba",
        overrides=_jamba,
        supported_keys=frozenset({"num_local_experts", "num_experts"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **{name: f"mamba.{rest}" for name, rest in MAMBA_TENSORS.items()},
                **FEED_FORWARD,
                "mixer_step_norm": "mamba.dt_layernorm.weight",
                "mixer_b_norm": "mamba.b_layernorm.weight",
                "mixer_c_norm": "mamba.c_layernorm.weight",
                "router": "feed_forward.router.weight",
                "expert_gate": "feed_forward.experts.{e}.gate_proj.weight",
                "expert_up": "feed_forward.experts.{e}.up_proj.weight",
                "expert_down": "feed_forward.experts.{e}.down_proj.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            intermediate_size=14_336,
            num_key_value_heads=8,
            num_local_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_conv_bias=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
